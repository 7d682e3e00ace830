/** Running the programs that a release is made with. */

export interface RunOptions {
  cwd?: string;
  /** Added to our own environment. */
  env?: Record<string, string>;
  /** Killed after this long. */
  timeoutMs?: number;
}

/**
 * Runs a program to its end and returns what it wrote to standard output.
 *
 * @throws with its last words when it exits with anything but 0
 */
export async function run(command: string[], options: RunOptions = {}): Promise<string> {
  const child = Bun.spawn(command, {
    cwd: options.cwd,
    env: { ...process.env, ...options.env },
    stdin: "ignore",
    stdout: "pipe",
    stderr: "pipe",
    timeout: options.timeoutMs,
  });
  const [out, err, code] = await Promise.all([
    new Response(child.stdout).text(),
    new Response(child.stderr).text(),
    child.exited,
  ]);
  if (code !== 0) {
    const words = `${out}\n${err}`.trim().split("\n").slice(-15).join("\n");
    throw new Error(`${command.slice(0, 3).join(" ")} … ended with ${child.signalCode ?? code}:\n${words}`);
  }
  return out;
}
