/** The door of lib/kube: what the rest of the program uses of it. */
export {
  apiPath,
  applyPatch,
  createKubeClient,
  describeFailure,
  type KubeClient,
  type KubeClientOptions,
  type KubeFailure,
  type KubeReply,
  mergePatch,
  type RequestOptions,
  strategicMergePatch,
} from "./client.ts";
export { type Clock, systemClock } from "./clock.ts";
export { type Watch, type WatchEvent, type WatchedObject, type WatchOptions, watch } from "./watch.ts";
