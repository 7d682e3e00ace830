/**
 * The admission policies on the real API server, row by row: what they say of a Sandbox, a SandboxTemplate and a
 * Pod is what `vk-sandbox check` says of the same manifest.
 */
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { join, resolve } from "node:path";
import { parseAllDocuments } from "yaml";
import { check, parseManifests } from "../../lib/check/index.ts";
import { eventually } from "./eventually.ts";
import { controlPlane } from "./world.ts";

const manifests = resolve(import.meta.dir, "../../manifests");
const registration = "/apis/admissionregistration.k8s.io/v1";

interface PodTemplate {
  metadata: { annotations?: Record<string, string> };
  spec: Record<string, unknown>;
}

const key = (name: string) => `sandbox.cocoonstack.io/${name}`;
const toleration = { key: "virtual-kubelet.io/provider", operator: "Exists", effect: "NoSchedule" };
const right: PodTemplate = {
  metadata: {
    annotations: {
      [key("runtime")]: "sandboxd",
      [key("template")]: "rt:24.04",
      [key("net")]: "none",
      [key("size")]: "small",
    },
  },
  spec: {
    nodeSelector: { [key("runtime")]: "sandboxd" },
    tolerations: [toleration],
    containers: [{ name: "agent", image: "rt:24.04" }],
    topologySpreadConstraints: [
      {
        topologyKey: "kubernetes.io/hostname",
        maxSkew: 1,
        whenUnsatisfiable: "ScheduleAnyway",
        labelSelector: {},
      },
    ],
  },
};

interface Row {
  /** The mistake, as a sentence. */
  name: string;
  /** null removes an annotation. */
  annotations?: Record<string, string | null>;
  /** undefined removes a field. */
  spec?: Record<string, unknown>;
  /** Rules whose messages must come, and no others. */
  faults?: string[];
  advice?: string[];
}

const affinity = (...terms: unknown[]) => ({
  nodeAffinity: { requiredDuringSchedulingIgnoredDuringExecution: { nodeSelectorTerms: terms } },
});
const runtimeTerm = { matchExpressions: [{ key: key("runtime"), operator: "In", values: ["sandboxd"] }] };

const rows: Row[] = [
  { name: "a right one" },
  {
    name: "only what is required",
    annotations: { [key("runtime")]: null, [key("net")]: null, [key("size")]: null },
  },
  { name: "no node selector", spec: { nodeSelector: undefined }, faults: ["sandboxd/selector-missing"] },
  {
    name: "no node selector, but a node affinity",
    spec: { nodeSelector: undefined, affinity: affinity(runtimeTerm) },
  },
  {
    name: "a node affinity with an alternative",
    spec: {
      nodeSelector: undefined,
      affinity: affinity(runtimeTerm, { matchExpressions: [{ key: "a", operator: "Exists" }] }),
    },
    faults: ["sandboxd/selector-missing"],
  },
  {
    name: "a selector that matches no node",
    spec: { nodeSelector: { [key("runtime")]: "sandboxed" } },
    faults: ["sandboxd/selector-value"],
  },
  {
    name: "both providers' selectors",
    spec: { nodeSelector: { [key("runtime")]: "sandboxd", "cocoonstack.io/pool": "default" } },
    faults: ["sandboxd/selectors-conflict"],
  },
  { name: "no toleration", spec: { tolerations: undefined }, faults: ["sandboxd/toleration-missing"] },
  { name: "no toleration among none", spec: { tolerations: [] }, faults: ["sandboxd/toleration-missing"] },
  {
    name: "a toleration of the other provider",
    spec: { tolerations: [{ key: "virtual-kubelet.io/provider", value: "cocoon" }] },
    faults: ["sandboxd/toleration-missing"],
  },
  {
    name: "a toleration with another effect",
    spec: { tolerations: [{ ...toleration, effect: "NoExecute" }] },
    faults: ["sandboxd/toleration-missing"],
  },
  {
    name: "a toleration by value",
    spec: { tolerations: [{ key: "virtual-kubelet.io/provider", value: "sandboxd" }] },
  },
  { name: "a toleration of everything", spec: { tolerations: [{ operator: "Exists" }] } },
  {
    name: "a pinned node, so that selector and toleration do not matter",
    spec: { nodeName: "node-1", nodeSelector: undefined, tolerations: undefined },
    advice: ["sandboxd/node-name"],
  },
  { name: "no template", annotations: { [key("template")]: null }, faults: ["sandboxd/template-missing"] },
  {
    name: "an empty template",
    annotations: { [key("template")]: "  " },
    faults: ["sandboxd/template-missing"],
  },
  {
    name: "a template with a space",
    annotations: { [key("template")]: "rt 24" },
    faults: ["sandboxd/template-value"],
  },
  { name: "another runtime", annotations: { [key("runtime")]: "kata" }, faults: ["sandboxd/runtime-value"] },
  { name: "an unknown lane", annotations: { [key("net")]: "None" }, faults: ["sandboxd/net-value"] },
  { name: "an unknown size", annotations: { [key("size")]: "huge" }, faults: ["sandboxd/size-value"] },
  ...["-1", "1.5", "1h", "12345678901"].map((ttl) => ({
    name: `ttl-seconds ${ttl}`,
    annotations: { [key("ttl-seconds")]: ttl },
    faults: ["sandboxd/ttl-value"],
  })),
  { name: "ttl-seconds 0", annotations: { [key("ttl-seconds")]: "0" }, advice: ["sandboxd/ttl-zero"] },
  {
    name: "ttl-seconds above 24 hours",
    annotations: { [key("ttl-seconds")]: "90000" },
    advice: ["sandboxd/ttl-clamped"],
  },
  { name: "ttl-seconds of 24 hours", annotations: { [key("ttl-seconds")]: "86400" } },
  {
    name: "a claim id of the author's",
    annotations: { [key("claim-id")]: "sb_1" },
    faults: ["sandboxd/claim-id-written"],
  },
  { name: "renew", annotations: { [key("renew")]: "true" } },
  { name: "renew in another word", annotations: { [key("renew")]: "yes" }, advice: ["sandboxd/renew-value"] },
  {
    name: "an image that is not the template",
    annotations: { [key("template")]: "other" },
    advice: ["sandboxd/image-differs"],
  },
  { name: "restartPolicy Never", spec: { restartPolicy: "Never" }, advice: ["sandboxd/restart-never"] },
  {
    name: "a RuntimeClass",
    spec: { runtimeClassName: "vk-admission-test" },
    advice: ["sandboxd/runtime-class"],
  },
  {
    name: "a PersistentVolumeClaim",
    spec: { volumes: [{ name: "data", persistentVolumeClaim: { claimName: "data" } }] },
    advice: ["sandboxd/volume-claim"],
  },
  { name: "a volume of another kind", spec: { volumes: [{ name: "data", emptyDir: {} }] } },
  {
    name: "a host port",
    spec: {
      containers: [{ name: "agent", image: "rt:24.04", ports: [{ containerPort: 80, hostPort: 80 }] }],
    },
    advice: ["sandboxd/host-port"],
  },
  {
    name: "vk-cocoon's annotations",
    annotations: { "cocoonset.cocoonstack.io/os": "linux" },
    advice: ["sandboxd/cocoon-annotation"],
  },
  {
    name: "an unknown annotation",
    annotations: { [key("flavour-of-the-month")]: "x" },
    advice: ["manifest/unknown-annotation"],
  },
  {
    name: "everything at once",
    annotations: {
      [key("template")]: null,
      [key("net")]: "x",
      [key("size")]: "x",
      [key("ttl-seconds")]: "x",
    },
    spec: { nodeSelector: undefined, tolerations: undefined, restartPolicy: "Never" },
    faults: [
      "sandboxd/net-value",
      "sandboxd/selector-missing",
      "sandboxd/size-value",
      "sandboxd/template-missing",
      "sandboxd/toleration-missing",
      "sandboxd/ttl-value",
    ],
    advice: ["sandboxd/restart-never"],
  },
  // What is not meant for sandboxd is not looked at, however wrong it would be there.
  {
    name: "a plain Pod for a kubelet",
    annotations: { [key("runtime")]: null, [key("template")]: null, [key("net")]: null, [key("size")]: null },
    spec: { nodeSelector: undefined, tolerations: undefined, restartPolicy: "Never" },
  },
  {
    name: "a Pod for a kubelet that tolerates everything",
    annotations: { [key("runtime")]: null, [key("template")]: null, [key("net")]: null, [key("size")]: null },
    spec: { nodeSelector: undefined, tolerations: [{ operator: "Exists" }], hostNetwork: true },
  },
  {
    name: "a Pod for a kubelet's RuntimeClass, annotations left over",
    annotations: { [key("runtime")]: null },
    spec: { nodeSelector: undefined, tolerations: undefined, runtimeClassName: "vk-admission-test" },
  },
  {
    name: "a Pod for vk-cocoon",
    annotations: { [key("runtime")]: "vk-cocoon", [key("template")]: null, "vm.cocoonstack.io/name": "vm" },
    spec: { nodeSelector: { "cocoonstack.io/pool": "default" } },
  },
];

function templateOf({ annotations, spec }: Row): PodTemplate {
  const all = { ...right.metadata.annotations, ...annotations };
  return {
    metadata: {
      annotations: Object.fromEntries(
        Object.entries(all).filter((e): e is [string, string] => e[1] !== null),
      ),
    },
    spec: JSON.parse(JSON.stringify({ ...right.spec, ...spec })),
  };
}

const kinds = {
  Sandbox: (template: PodTemplate) => ({
    path: "/apis/agents.x-k8s.io/v1beta1/namespaces/default/sandboxes",
    object: {
      apiVersion: "agents.x-k8s.io/v1beta1",
      kind: "Sandbox",
      metadata: { name: "admission" },
      spec: { podTemplate: template },
    },
  }),
  SandboxTemplate: (template: PodTemplate) => ({
    path: "/apis/extensions.agents.x-k8s.io/v1beta1/namespaces/default/sandboxtemplates",
    object: {
      apiVersion: "extensions.agents.x-k8s.io/v1beta1",
      kind: "SandboxTemplate",
      metadata: { name: "admission" },
      spec: { podTemplate: template },
    },
  }),
  Pod: (template: PodTemplate) => ({
    path: "/api/v1/namespaces/default/pods",
    object: {
      apiVersion: "v1",
      kind: "Pod",
      metadata: { name: "admission", ...template.metadata },
      spec: template.spec,
    },
  }),
};

interface Answer {
  status: number;
  message: string;
  warnings: string[];
}

/** A request that changes nothing unless `real`. */
async function send(method: string, path: string, object: unknown, real = false): Promise<Answer> {
  const { server, ca, cert, key } = controlPlane().credentials("admin");
  const response = await fetch(`${server}${path}${real ? "" : "?dryRun=All"}`, {
    method,
    headers: { "content-type": method === "PATCH" ? "application/merge-patch+json" : "application/json" },
    body: JSON.stringify(object),
    tls: { ca, cert, key },
  });
  const body = (await response.json()) as { message?: string };
  const warnings = [...(response.headers.get("warning") ?? "").matchAll(/299 - "((?:[^"\\]|\\.)*)"/g)];
  return {
    status: response.status,
    message: body.message ?? "",
    warnings: warnings.map(([, text = ""]) => text),
  };
}

/** Ids of the rules that messages begin with. */
function rulesIn(texts: readonly string[]): string[] {
  return texts
    .flatMap((text) => [...text.matchAll(/\[([a-z]+\/[a-z-]+)\]/g)].map(([, id = ""]) => id))
    .sort();
}

beforeAll(async () => {
  const { api } = controlPlane();
  await api.apply("/apis/node.k8s.io/v1/runtimeclasses/vk-admission-test", {
    apiVersion: "node.k8s.io/v1",
    kind: "RuntimeClass",
    metadata: { name: "vk-admission-test" },
    handler: "none",
  });
  await api.applyFile(join(manifests, "admission-policy.yaml"));
  await warning();
});

afterAll(async () => {
  const { api } = controlPlane();
  for (const name of policyNames()) {
    await api.delete(`${registration}/validatingadmissionpolicybindings/${name}`);
    await api.delete(`${registration}/validatingadmissionpolicies/${name}`);
  }
  await api.delete("/apis/node.k8s.io/v1/runtimeclasses/vk-admission-test");
});

function policyNames(): string[] {
  return ["template", "pod"].flatMap((what) =>
    ["faults", "advice"].map((kind) => `vk-sandbox-${what}-${kind}`),
  );
}

const spoiled = () => templateOf({ name: "", annotations: { [key("size")]: "huge", [key("renew")]: "x" } });

/** The API server takes a moment to see a policy: until all four speak, of all kinds, and nothing is refused. */
async function warning(): Promise<void> {
  for (const kind of Object.values(kinds)) {
    const { path, object } = kind(spoiled());
    await eventually(
      `the policies warn of ${object.kind}s`,
      () => send("POST", path, object),
      ({ status, warnings }) =>
        status === 201 && rulesIn(warnings).join() === "sandboxd/renew-value,sandboxd/size-value",
    );
  }
}

describe("the warnings of the API server are what check finds", () => {
  for (const kind of Object.keys(kinds) as (keyof typeof kinds)[])
    describe(kind, () => {
      for (const row of rows)
        test(row.name, async () => {
          const { path, object } = kinds[kind](templateOf(row));
          const { status, message, warnings } = await send("POST", path, object);
          expect([status, message]).toEqual([201, ""]);
          const said = rulesIn(warnings);
          expect(said).toEqual([...(row.faults ?? []), ...(row.advice ?? [])].sort());
          const { objects } = parseManifests({ name: "row", text: JSON.stringify(object), bom: false });
          const found = new Set<string>(
            check({ objects, nowMs: Date.now() }).findings.map(({ rule }) => rule),
          );
          for (const rule of said) expect(found).toContain(rule);
        });
    });
  test("a template that is not spread, and volume claims of a Sandbox's own", async () => {
    const template = templateOf({ name: "", spec: { topologySpreadConstraints: undefined } });
    const of = async (kind: keyof typeof kinds, spec: object = {}) => {
      const { path, object } = kinds[kind](template);
      const { warnings } = await send("POST", path, { ...object, spec: { ...object.spec, ...spec } });
      return rulesIn(warnings);
    };
    expect(await of("SandboxTemplate")).toEqual(["sandboxd/spread-missing"]);
    expect(await of("Sandbox")).toEqual([]);
    const claims = {
      volumeClaimTemplates: [{ metadata: { name: "data" }, spec: { accessModes: ["ReadWriteOnce"] } }],
    };
    expect(await of("Sandbox", claims)).toEqual(["sandboxd/volume-claim"]);
  });
});

interface Policy {
  metadata: { name: string; generation?: number };
  spec: {
    matchConstraints: unknown;
    matchConditions: { expression: string }[];
    variables: { name: string; expression: string }[];
    validations: { expression: string; messageExpression?: string }[];
  };
  status?: { observedGeneration?: number; typeChecking?: { expressionWarnings?: unknown[] } };
}

/**
 * The API server checks expressions against the schemas of the kinds, but takes a variable for anything. So each
 * expression is checked with its variables written out.
 */
function writtenOut({ metadata, spec }: Policy): Policy {
  const expressions = new Map(spec.variables.map(({ name, expression }) => [name, expression]));
  const expand = (text: string): string =>
    text.replace(/\bvariables\.(\w+)/g, (_, name: string) => `(${expand(expressions.get(name) ?? name)})`);
  const messages = spec.validations.flatMap(({ messageExpression }) => messageExpression ?? []);
  return {
    metadata: { name: `${metadata.name}-written-out` },
    spec: {
      matchConstraints: spec.matchConstraints,
      matchConditions: [],
      variables: [],
      validations: [
        ...spec.validations.map(({ expression }) => expression),
        ...spec.matchConditions.map(({ expression }) => expression),
        ...messages.map((expression) => `(${expression}) != ''`),
      ].map((expression) => ({ expression: expand(expression) })),
    },
  };
}

describe("the type checker of the API server", () => {
  const { api } = controlPlane();
  /** What the checker says of a policy that is made for the question. */
  async function warningsOf(policy: Policy): Promise<unknown[]> {
    const path = `${registration}/validatingadmissionpolicies/${policy.metadata.name}`;
    const kind = { apiVersion: "admissionregistration.k8s.io/v1", kind: "ValidatingAdmissionPolicy" };
    await api.apply(path, { ...kind, ...policy });
    try {
      const checked = await eventually(
        `${policy.metadata.name} was type-checked`,
        () => api.get<Policy>(path),
        ({ metadata, status }) => status?.observedGeneration === metadata.generation,
      );
      return checked.status?.typeChecking?.expressionWarnings ?? [];
    } finally {
      await api.delete(path);
    }
  }
  const policyOf = (name: string) => api.get<Policy>(`${registration}/validatingadmissionpolicies/${name}`);

  for (const name of policyNames())
    test(`finds nothing against ${name}`, async () => {
      expect(await warningsOf(writtenOut(await policyOf(name)))).toEqual([]);
    });
  test("would find a field that does not exist", async () => {
    const policy = writtenOut(await policyOf("vk-sandbox-template-advice"));
    for (const validation of policy.spec.validations)
      validation.expression = validation.expression.replaceAll("restartPolicy", "restartPolice");
    // Of Sandbox and SandboxTemplate, in both versions.
    expect(JSON.stringify(await warningsOf(policy))).toContain("undefined field 'restartPolice'");
  });
});

describe("with the deny bindings", () => {
  beforeAll(async () => {
    await controlPlane().api.applyFile(join(manifests, "admission-policy-deny.yaml"));
    for (const kind of Object.values(kinds)) {
      const { path, object } = kind(spoiled());
      await eventually(
        `a wrong ${object.kind} is refused`,
        () => send("POST", path, object),
        ({ status }) => status === 422,
      );
    }
  });
  afterAll(async () => {
    await controlPlane().api.applyFile(join(manifests, "admission-policy.yaml"));
    await warning();
  });

  for (const kind of Object.keys(kinds) as (keyof typeof kinds)[])
    describe(kind, () => {
      for (const row of rows)
        test(`${row.name} is ${row.faults === undefined ? "taken" : "refused"}`, async () => {
          const { path, object } = kinds[kind](templateOf(row));
          const { status, message, warnings } = await send("POST", path, object);
          if (row.faults === undefined) {
            expect([status, message]).toEqual([201, ""]);
            expect(rulesIn(warnings)).toEqual((row.advice ?? []).sort());
          } else {
            expect(status).toBe(422);
            // One of them is enough for a refusal; the API server names the first.
            const [rule = ""] = rulesIn([message]);
            expect(row.faults).toContain(rule);
          }
        });
    });

  test("the deprecated version is judged too", async () => {
    const { path, object } = kinds.Sandbox(spoiled());
    const older = { ...object, apiVersion: "agents.x-k8s.io/v1alpha1" };
    const { status, message } = await send("POST", path.replace("v1beta1", "v1alpha1"), older);
    expect([status, rulesIn([message])]).toEqual([422, ["sandboxd/size-value"]]);
  });

  test("what was wrong before may be changed elsewhere, and not made wrong in another way", async () => {
    const { api } = controlPlane();
    const { path, object } = kinds.Sandbox(spoiled());
    await api.applyFile(join(manifests, "admission-policy.yaml"));
    await warning();
    expect((await send("POST", path, object, true)).status).toBe(201);
    try {
      await api.applyFile(join(manifests, "admission-policy-deny.yaml"));
      await eventually(
        "wrong Sandboxes are refused again",
        () => send("POST", path, { ...object, metadata: { name: "another" } }),
        ({ status }) => status === 422,
      );
      const one = `${path}/admission`;
      expect((await send("PATCH", one, { metadata: { labels: { a: "b" } } })).status).toBe(200);
      expect((await send("PATCH", one, { spec: { operatingMode: "Suspended" } })).status).toBe(200);
      const annotations = { [key("net")]: "x" };
      expect(
        (await send("PATCH", one, { spec: { podTemplate: { metadata: { annotations } } } })).status,
      ).toBe(422);
      const mended = { [key("size")]: "large" };
      expect(
        (await send("PATCH", one, { spec: { podTemplate: { metadata: { annotations: mended } } } })).status,
      ).toBe(200);
    } finally {
      await api.delete(`${path}/admission`);
    }
  });

  test("the provider may write the claim id, and a wrong Pod may be deleted", async () => {
    const { path, object } = kinds.Pod(right);
    expect((await send("POST", path, object, true)).status).toBe(201);
    const one = `${path}/admission`;
    try {
      const claim = { metadata: { annotations: { [key("claim-id")]: "sb_1" } } };
      expect((await send("PATCH", `${one}/status`, claim)).status).toBe(200);
      expect((await send("PATCH", one, claim)).status).toBe(200);
    } finally {
      await controlPlane().api.delete(one, { gracePeriodSeconds: 0 });
    }
  });
});

test("both files hold nothing but policies and bindings that belong together", async () => {
  for (const name of ["admission-policy.yaml", "admission-policy-deny.yaml"]) {
    const text = await Bun.file(join(manifests, name)).text();
    for (const document of parseAllDocuments(text)) {
      const { kind, metadata, spec } = document.toJS();
      expect(policyNames()).toContain(metadata.name);
      if (kind === "ValidatingAdmissionPolicyBinding") expect(spec.policyName).toBe(metadata.name);
    }
  }
});

describe("what check says that the API server refuses, it refuses", () => {
  type Changed = (object: Record<string, never>) => object;
  const set =
    (path: string, value: unknown): Changed =>
    (object) => {
      const copy = structuredClone(object) as Record<string, unknown>;
      const steps = path.split("/");
      const last = steps.pop() ?? "";
      let at = copy;
      for (const step of steps) {
        at[step] ??= {};
        at = at[step] as Record<string, unknown>;
      }
      at[last] = value;
      return copy;
    };
  const refused: [name: string, kind: keyof typeof kinds, change: Changed, rule: string, status: number][] = [
    [
      "a number as an annotation of a template",
      "Sandbox",
      set("spec/podTemplate/metadata/annotations/a", 60),
      "manifest/not-a-string",
      422,
    ],
    [
      "a number as an annotation of a Pod",
      "Pod",
      set("metadata/annotations/a", 60),
      "manifest/not-a-string",
      400,
    ],
    [
      "a boolean as a label of an object",
      "Sandbox",
      set("metadata/labels", { a: true }),
      "manifest/not-a-string",
      400,
    ],
    [
      "a number in a selector",
      "SandboxTemplate",
      set("spec/podTemplate/spec/nodeSelector/a", 1),
      "manifest/not-a-string",
      422,
    ],
    [
      "a Sandbox without a Pod template",
      "Sandbox",
      set("spec/podTemplate", {}),
      "manifest/no-pod-template",
      422,
    ],
    ["a Pod without containers", "Pod", set("spec/containers", []), "manifest/no-pod-template", 422],
    [
      "a RuntimeClass that does not exist",
      "Pod",
      set("spec/runtimeClassName", "nobody-made-it"),
      "sandboxd/runtime-class",
      403,
    ],
  ];
  test.each(refused)("%s", async (_, kind, change, rule, status) => {
    const { path, object } = kinds[kind](right);
    const wrong = change(object as unknown as Record<string, never>);
    expect((await send("POST", path, wrong)).status).toBe(status);
    const { objects } = parseManifests({ name: "row", text: JSON.stringify(wrong), bom: false });
    expect(check({ objects, nowMs: Date.now() }).findings.map((finding): string => finding.rule)).toContain(
      rule,
    );
  });
  test("null is empty, and not refused", async () => {
    const { path, object } = kinds.Sandbox(right);
    const wrong = set("spec/podTemplate/metadata/annotations/a", null);
    expect((await send("POST", path, wrong(object as unknown as Record<string, never>))).status).toBe(201);
  });
});
