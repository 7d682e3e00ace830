/** The verbs of scripts/cluster. */
import { existsSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { binariesDir, ensureBinaries } from "./binaries.ts";
import { ControlPlane, components } from "./controlplane.ts";

const usage = `usage: scripts/cluster VERB [--dir DIR]
  up [--bare] [--address IP] [--kcm-arg=ARG]… [--apiserver-arg=ARG]…
              start etcd, kube-apiserver, kube-scheduler and kube-controller-manager on loopback;
              with CRDs and manifests/rbac.yaml applied unless --bare. No controller of Sandboxes runs:
              a Sandbox gets no Pod by itself; the demo and the tests make them
  down        stop them and remove all they left, after a crash too
  status      say what runs; exit 1 when not all does
  env         print KUBECONFIG (admin) and VK_KUBECONFIG (the provider's service account) for eval
  kubeconfig NAME --user USER [--group GROUP]…
              make a kubeconfig for another identity and print its path
  build       only build the binaries, and print where they are
The directory is $TMPDIR/vk-sandbox-cluster unless --dir names another.`;

const say = (line: string) => console.error(line);

async function main(): Promise<number> {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      dir: { type: "string", default: join(tmpdir(), "vk-sandbox-cluster") },
      address: { type: "string" },
      bare: { type: "boolean" },
      "kcm-arg": { type: "string", multiple: true },
      "apiserver-arg": { type: "string", multiple: true },
      user: { type: "string" },
      group: { type: "string", multiple: true },
      help: { type: "boolean", short: "h" },
    },
  });
  const [verb, name] = positionals;
  if (values.help) {
    console.log(usage);
    return 0;
  }
  switch (verb) {
    case "build":
      await ensureBinaries(say);
      console.log(binariesDir());
      return 0;
    case "up": {
      const cluster = await ControlPlane.up({
        dir: values.dir,
        address: values.address,
        controllerManagerArgs: values["kcm-arg"],
        apiserverArgs: values["apiserver-arg"],
        bare: values.bare,
        say,
      });
      if (!values.bare) await cluster.serviceAccount("vk-sandbox", "vk-sandbox");
      say(`next: eval "$(scripts/cluster env --dir ${cluster.dir})"`);
      return 0;
    }
    case "down":
      if (existsSync(join(values.dir, "cluster.json"))) await ControlPlane.attach(values.dir).down();
      else say(`nothing to take down: no control plane in ${values.dir}`);
      return 0;
    case "status": {
      const cluster = ControlPlane.attach(values.dir);
      let all = true;
      for (const component of components) {
        const pid = cluster.pid(component);
        const healthy = pid !== undefined && (await cluster.healthy(component));
        all &&= healthy;
        console.log(
          `${component}: ${pid === undefined ? "not running" : `pid ${pid}, ${healthy ? "healthy" : "NOT healthy"}`}`,
        );
      }
      console.log(`API server: ${cluster.server}`);
      return all ? 0 : 1;
    }
    case "env": {
      const cluster = ControlPlane.attach(values.dir);
      console.log(`export KUBECONFIG='${cluster.kubeconfig("admin")}'`);
      console.log(`export VK_KUBECONFIG='${cluster.kubeconfig("vk-sandbox")}'`);
      return 0;
    }
    case "kubeconfig":
      if (name === undefined || values.user === undefined) break;
      console.log(
        ControlPlane.attach(values.dir).identity(name, { user: values.user, groups: values.group ?? [] }),
      );
      return 0;
  }
  console.error(usage);
  return 2;
}

try {
  process.exitCode = await main();
} catch (error) {
  console.error(`scripts/cluster: ${error instanceof Error ? error.message : error}`);
  process.exitCode = 1;
}
