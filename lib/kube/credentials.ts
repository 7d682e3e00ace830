/** Who we are to the API server, and whom we trust. Replaced as a whole when any part of it changes. */
export interface Credential {
  /** The Authorization header, scheme included; empty when the client certificate speaks for us. */
  readonly authorization: string;
  /** TLS material in PEM. The same object as long as nothing in it changed, so that connections are kept. */
  readonly tls: ClientTls;
}

export interface ClientTls {
  readonly ca?: string;
  readonly cert?: string;
  readonly key?: string;
  /** false only when the kubeconfig says insecure-skip-tls-verify. */
  readonly rejectUnauthorized?: boolean;
  /** Name expected in the server's certificate, and sent as SNI (kubeconfig: tls-server-name). */
  readonly serverName?: string;
}

/** No usable credential, in words that name the file or plugin and the next step. Never carries a secret. */
export interface CredentialFailure {
  readonly why: string;
}

/** Where the credential comes from; it may change at any time (rotated token, expiring plugin, renewed certificate). */
export interface CredentialSource {
  /** The credential to use now. Answers without a promise unless it has to be fetched. */
  current(): Credential | CredentialFailure | Promise<Credential | CredentialFailure>;
  /** The API server answered 401 to this credential: look again before the next use. */
  rejected(credential: Credential): void;
}

export function isCredential(value: Credential | CredentialFailure): value is Credential {
  return "authorization" in value;
}

/** A credential that never changes. */
export function fixedCredential(credential: Partial<Credential> = {}): CredentialSource {
  const fixed: Credential = { authorization: credential.authorization ?? "", tls: credential.tls ?? {} };
  return { current: () => fixed, rejected: () => {} };
}
