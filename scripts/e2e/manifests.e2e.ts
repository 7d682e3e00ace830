/** What manifests/ offers: the real API server takes every object, and `check` finds the examples right. */
import { expect, test } from "bun:test";
import { readdirSync, readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { parseAllDocuments } from "yaml";
import type { KubeObject } from "../controlplane/api.ts";
import { controlPlane } from "./world.ts";

const root = resolve(import.meta.dir, "../..");
const binary = resolve(process.env.VK_E2E_BINARY ?? join(root, "dist/vk-sandbox"));
/** For other readers than the API server. */
const notObjects = ["alerts.yaml", "kustomization.yaml"];

const yamlIn = (dir: string) =>
  readdirSync(join(root, dir))
    .filter((file) => file.endsWith(".yaml") && !notObjects.includes(file))
    .map((file) => join(dir, file));
const examples = yamlIn("manifests/examples");

function objectsOf(path: string): KubeObject[] {
  const documents = parseAllDocuments(readFileSync(join(root, path), "utf8"));
  expect(documents.flatMap((document) => document.errors)).toEqual([]);
  return documents.map((document) => document.toJS() as KubeObject);
}

for (const path of [...yamlIn("manifests"), ...examples])
  test(`${path}: the API server takes each object, with no field it does not know`, async () => {
    const { api } = controlPlane();
    for (const object of objectsOf(path)) {
      const query = "?fieldManager=manifests-e2e&force=true&dryRun=All&fieldValidation=Strict";
      const taken = await api.request<KubeObject>(
        "PATCH",
        (await api.pathOf(object)) + query,
        object,
        "application/apply-patch+yaml",
      );
      expect(taken.metadata.name).toBe(object.metadata.name);
    }
  });

for (const path of examples)
  test(`${path}: vk-sandbox check finds no error and no warning`, () => {
    const { exitCode, stdout } = Bun.spawnSync([binary, "check", "--json", join(root, path)]);
    expect(JSON.parse(stdout.toString())).toMatchObject({ summary: { error: 0, warning: 0, files: 1 } });
    expect(exitCode).toBe(0);
  });
