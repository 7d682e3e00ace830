import { isWholePem } from "../pem.ts";
import type { ClientTls } from "./credentials.ts";

/**
 * Why TLS material cannot be used, or undefined when it can: cut off while somebody writes it, or a certificate
 * whose key is still the last one's, because the two are files and are replaced one after the other. Tried on a
 * listener that accepts nobody: the runtime looks at both there, and at the request only when it is too late.
 */
export function materialFault({ ca, cert, key }: ClientTls): string | undefined {
  if (ca !== undefined && !isWholePem(ca)) return "the CA is cut off";
  if (cert !== undefined && !isWholePem(cert)) return "the client certificate is cut off";
  if (key !== undefined && !isWholePem(key)) return "the client key is cut off";
  if (ca === undefined && cert === undefined) return undefined;
  try {
    Bun.listen({ hostname: "127.0.0.1", port: 0, tls: { ca, cert, key }, socket: { data() {} } }).stop(true);
    return undefined;
  } catch (error) {
    const code = error instanceof Error && "code" in error ? String(error.code) : "";
    if (code.includes("KEY_VALUES_MISMATCH"))
      return "the client key does not belong to the client certificate";
    // Not the material's fault: a host without a free port or loopback.
    if (/^E[A-Z]+$/.test(code)) return undefined;
    return `CA, client certificate or key cannot be read as PEM (${code})`;
  }
}
