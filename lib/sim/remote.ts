/**
 * The remote control: every function of a stand-in's control, for other processes. `POST /_sim/<name>` with the
 * function's one argument as JSON answers `{"result": …}`, or 400 `{"error": …}`; `GET /_sim/` names them.
 */
import { json, type SimReply, type SimRequest } from "./http.ts";

export const remotePrefix = "/_sim/";

/**
 * Calls the function of `control` that the path names. Those in `afterwards` take the server down, so they are
 * answered first and run then.
 */
export async function callRemote(
  control: object,
  request: SimRequest,
  afterwards: string[] = [],
): Promise<SimReply> {
  const functions = control as Record<string, unknown>;
  const name = request.path.slice(remotePrefix.length);
  if (name === "") return json(200, { result: Object.keys(functions) });
  const call = Object.hasOwn(functions, name) ? functions[name] : undefined;
  if (typeof call !== "function")
    return json(404, { error: `no ${name} here; there are ${Object.keys(functions).join(", ")}` });
  try {
    const argument: unknown = request.body === "" ? undefined : JSON.parse(request.body);
    if (afterwards.includes(name)) return { ...json(200, { result: null }), sent: () => void call(argument) };
    return json(200, { result: (await call(argument)) ?? null });
  } catch (error) {
    return json(400, { error: error instanceof Error ? error.message : String(error) });
  }
}
