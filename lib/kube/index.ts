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
  type Method,
  mergePatch,
  type RequestOptions,
  strategicMergePatch,
} from "./client.ts";
export { type Clock, isRecent, systemClock } from "./clock.ts";
export { fixedCredential } from "./credentials.ts";
export { createDiscovery, type Discovery, type Lookup } from "./discovery.ts";
export {
  createEventRecorder,
  type EventRecorder,
  type EventRecorderOptions,
  type EventStats,
  type ObjectReference,
} from "./events.ts";
export {
  type ClusterConfig,
  type ClusterResult,
  type LoadClusterOptions,
  loadCluster,
} from "./kubeconfig.ts";
export { readBarePod, readOwner, readPod } from "./owner.ts";
export {
  type Watch,
  type WatchEvent,
  type WatchedObject,
  type WatchOptions,
  type WatchProblem,
  type WatchStats,
  watch,
} from "./watch.ts";
