/** What the manifests say to the provider is what the provider understands. */
import { expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { configFrom, flagList } from "../../lib/config/index.ts";
import packageJson from "../../package.json";

const root = join(import.meta.dir, "../..");
const read = (path: string) => readFileSync(join(root, "manifests", path), "utf8");
const variables = new Set<string>(flagList.map((flag) => flag.env));

interface Container {
  env: { name: string; value?: string; valueFrom?: unknown }[];
  volumeMounts: { name: string; mountPath: string }[];
  ports: { name: string; containerPort: number; hostPort: number }[];
}
const daemonSet = Bun.YAML.parse(read("daemonset.yaml")) as {
  spec: {
    template: {
      spec: { containers: [Container]; volumes: { name: string }[]; terminationGracePeriodSeconds: number };
    };
  };
};
const pod = daemonSet.spec.template.spec;
const [container] = pod.containers;

/** What Kubernetes makes of `$(OTHER)`, given the fields that it fills in. */
function expanded({ env }: Container): Record<string, string> {
  const values: Record<string, string> = {};
  for (const { name, value } of env)
    values[name] = (value ?? (name.endsWith("IP") ? "10.0.0.5" : "host-1")).replaceAll(
      /\$\((\w+)\)/g,
      (whole, other: string) => values[other] ?? whole,
    );
  return values;
}

test("the DaemonSet's variables are a configuration, with a Node name that is not the host's", () => {
  const values = expanded(container);
  for (const name of Object.keys(values)) if (name !== "HOST_NODE") expect(variables).toContain(name);
  const loaded = configFrom(new Map(), values);
  expect(loaded).toMatchObject({
    ok: true,
    config: {
      node: { name: "host-1-sandboxd", ip: "10.0.0.5" },
      sandboxd: { tokenFile: "/etc/sandboxd/api-token" },
    },
  });
  if (!loaded.ok) return;
  // The port that the Node publishes is the one that is open and probed, and the table is on the host.
  expect(container.ports).toEqual([
    expect.objectContaining({
      containerPort: loaded.config.kubelet.listen.port,
      hostPort: loaded.config.kubelet.listen.port,
    }),
  ]);
  const mounts = container.volumeMounts.map(({ mountPath }) => mountPath);
  for (const file of [loaded.config.statePath, loaded.config.sandboxd.tokenFile ?? ""])
    expect(
      mounts.some((path) => file.startsWith(`${path}/`)),
      file,
    ).toBe(true);
});

test("every mount of the DaemonSet has its volume", () => {
  expect(container.volumeMounts.map(({ name }) => name).sort()).toEqual(
    pod.volumes.map(({ name }) => name).sort(),
  );
});

test("env.example is a configuration, and so it is with everything that it comments out", () => {
  const text = read("vk-sandbox.env.example");
  for (const lines of [text, text.replaceAll(/^#(?=[A-Z_]+=)/gm, "")]) {
    const pairs = [...lines.matchAll(/^([A-Z_]+)=(.*)$/gm)].map((m) => [m[1] ?? "", m[2] ?? ""] as const);
    expect(pairs.length).toBeGreaterThan(3);
    for (const [name] of pairs) expect(variables).toContain(name);
    expect(configFrom(new Map(), Object.fromEntries(pairs))).toMatchObject({ ok: true });
  }
});

test("the overlay's variables are a configuration too, before the base's, where kustomize puts them", () => {
  const overlay = Bun.YAML.parse(read("../docs/examples/overlay/kustomization.yaml")) as {
    patches: { patch: string }[];
  };
  const patch = Bun.YAML.parse(overlay.patches[0]?.patch ?? "") as typeof daemonSet & {
    metadata: { name: string };
  };
  expect(patch.metadata.name).toBe("vk-sandbox");
  const { env } = patch.spec.template.spec.containers[0];
  const changed = env.map(({ name }) => name);
  const merged = [...env, ...container.env.filter(({ name }) => !changed.includes(name))];
  const loaded = configFrom(new Map(), expanded({ ...container, env: merged }));
  expect(loaded).toMatchObject({
    ok: true,
    config: { inventory: { publish: true }, sandboxd: { advertiseAddr: "10.0.0.5:7777" } },
  });
  for (const name of changed) if (name !== "HOST_IP") expect(variables).toContain(name);
});

test("the unit and the DaemonSet give a stopping daemon more than the 10 s it may take", () => {
  const source = readFileSync(join(root, "cmd/run.ts"), "utf8");
  const drainSeconds = Number(/DRAIN_MS = ([\d_]+);/.exec(source)?.[1]?.replaceAll("_", "")) / 1000;
  expect(drainSeconds).toBeGreaterThan(0);
  const stop = Number(/^TimeoutStopSec=(\d+)$/m.exec(read("vk-sandbox.service"))?.[1]);
  expect(stop).toBeGreaterThan(drainSeconds);
  expect(pod.terminationGracePeriodSeconds).toBeGreaterThan(drainSeconds);
});

test("kustomization and docs name the version that is built", () => {
  const { version } = packageJson;
  expect(read("kustomization.yaml")).toContain(`newTag: ${version}\n`);
  expect(read("../docs/examples/overlay/kustomization.yaml")).toContain(`newTag: ${version}\n`);
  const installation = readFileSync(join(root, "docs/installation.md"), "utf8");
  const named = [...installation.matchAll(/vk-sandbox[-:](\d+\.\d+\.\d+)/g)].map((m) => m[1]);
  expect(new Set(named)).toEqual(new Set([version]));
});
