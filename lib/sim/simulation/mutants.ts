// biome-ignore-all lint/suspicious/noTemplateCurlyInString: these strings are source text
/**
 * Deliberate mistakes. Each is a piece of source and what a hurried hand might have written in its place;
 * scripts/mutants puts them in one at a time and lets the simulator find them.
 */
export interface Mutant {
  /** The mistake, in words. */
  mistake: string;
  file: string;
  /** Exact source, found once in the file, and what takes its place. */
  edits: { from: string; to: string }[];
  /** Options of the simulator. */
  realStore?: boolean;
}

const CORE = "lib/provider/provider.ts";
const VERDICT = "lib/provider/verdict.ts";

const core = (mistake: string, from: string, to: string): Mutant => ({
  mistake,
  file: CORE,
  edits: [{ from, to }],
});
const judging = (mistake: string, from: string, to: string): Mutant => ({
  mistake,
  file: VERDICT,
  edits: [{ from, to }],
});

export const mutants: Mutant[] = [
  // ---- verdicts
  judging(
    "a 404 without details is read as gone (what a naive plural leads to)",
    "return state.named\n        ? release(`${subject} is gone`)",
    "return state.named || true\n        ? release(`${subject} is gone`)",
  ),
  judging(
    "an owner that could not be read is read as gone",
    "return preserve(`${subject} could not be read: ${state.why}`)",
    "return release(`${subject} could not be read: ${state.why}`)",
  ),
  judging(
    "an owner made anew under the same name keeps the old one's VM",
    "if (state.uid !== authority) return",
    "if (state.uid === '') return",
  ),
  judging(
    "an owner that is being deleted keeps its VM",
    "if (state.deleting) return",
    "if (state.uid === '') return",
  ),
  judging("an expired owner keeps its VM", "if (state.expired) return", "if (state.uid === '') return"),
  core(
    "an answer about another owner decides",
    'if (row.authority !== "" && row.authority !== (effect.owner?.uid ?? row.podUID)) return;',
    "",
  ),
  core(
    "a Pod that a list lacks counts as deleted",
    "const endedUid = pod?.uid ?? slot.goneUid;",
    "const endedUid = pod?.uid ?? row.podUID;",
  ),
  core(
    "a Pod's new owner is believed on the reference's word",
    "if (owner !== undefined) return confirmOwner(slot, row, owner);\n    if (row.deadlineMs === 0) return;",
    "if (owner !== undefined) return void adopt(slot, pod, row);\n    if (row.deadlineMs === 0) return;",
  ),
  // ---- adoption
  core(
    "a same-name Pod of another owner adopts",
    'if (!own && row.authority !== "" && !hasAuthority(row, pod)) {',
    'if (!own && row.authority === "never") {',
  ),
  core(
    "a Pod of another owner takes back what was set aside",
    'if (!own && entry.row.authority !== "" && !hasAuthority(entry.row, pod)) continue;',
    "",
  ),
  core(
    "a displaced claim is released unasked",
    '{ kind: "displaced", id: row.id, value: { key: slot.key, row } },',
    '{ kind: "releasing", id: row.id, value: { key: slot.key, row, reason } },',
  ),
  core(
    "a Pod whose owner has a VM set aside claims another",
    "if (entry.key !== slot.key) continue;",
    "if (entry.key !== '') continue;",
  ),
  core(
    "a VM that we put to sleep is adopted without waking it",
    'if (slot.sleep !== "awake" && !(ran && slot.sleep === "asleep")) return wake(slot, pod, row);',
    "",
  ),
  core(
    "a hibernate call without an answer is taken for one that did nothing",
    '// Until it is answered, and if it is not, the VM may be awake or asleep.\n    slot.sleep = "tried";\n    start(slot, { kind: "hibernate"',
    'start(slot, { kind: "hibernate"',
  ),
  core(
    "the VM of a suspended owner runs on",
    "slot.sleepWanted = judged.suspended;",
    "slot.sleepWanted = false;",
  ),
  // ---- durability
  core(
    "Running is published before the row is durable",
    "if (ports.commit(changes)) {\n        forgetRowState(slot);\n        slot.rowSeq = effect.seq;",
    "if (slot.pod) publish(slot, slot.pod, runningStatus(slot.pod, row), row.id, row.address);\n      if (ports.commit(changes)) {\n        forgetRowState(slot);\n        slot.rowSeq = effect.seq;",
  ),
  core(
    "a claim that cannot be committed is forgotten",
    "slot.tentative = grant;",
    "slot.find = newFind(true);",
  ),
  core(
    "the intent is not written before the claim",
    'if (!ports.commit([{ kind: "intent", key: slot.key, value: intent }])) {',
    "if (now < 0) {",
  ),
  core(
    "the intent is closed on the first search, before sandboxd has settled",
    "if (find.settledAtMs === undefined) {",
    "if (find.settledAtMs === undefined && now < 0) {",
  ),
  core(
    "a lost claim is taken for a refused one",
    "if (result.lost) {\n      slot.find = newFind();",
    "if (result.lost && now < 0) {\n      slot.find = newFind();",
  ),
  core(
    "open intents are forgotten at a restart",
    "slotOf(key).find = newFind();",
    "slotOf(key).find = newFind(true);",
  ),
  core(
    "the release queue is forgotten at a restart",
    "releases.set(id, { attempt: 0, atMs: mono });\n    // A queue",
    "// A queue",
  ),
  core(
    "displaced claims are forgotten at a restart",
    'displaced.set(id, { askAtMs: mono, delayMs: 0, lastReason: "", seq: 0, suspect: false });',
    "",
  ),
  core(
    "a release that failed counts as done",
    'result.ok || result.kind === "gone",\n          result.ok ? "" : result.why,',
    'true,\n          "",',
  ),
  core(
    "a tentative claim whose release failed counts as returned",
    'return onTentativeReleased(slot, result.ok || result.kind === "gone",',
    "return onTentativeReleased(slot, true,",
  ),
  core(
    "the Pod is let go before its VM is released",
    "if (slot.releasing.some((id) => concerns(pod, table.releasing.get(id)?.row))) return;",
    "",
  ),
  // ---- listings
  core(
    "rows from disk are believed before anything vouches for them",
    "const slot = slotOf(key);\n    slot.quarantined = true;",
    "slotOf(key);",
  ),
  core(
    "a failed listing is read as an empty one",
    "return onListed(event.effect, event.result.ok ? event.result.rows : undefined);",
    "return onListed(event.effect, event.result.ok ? event.result.rows : []);",
  ),
  {
    mistake: "one listing is proof of absence",
    file: CORE,
    edits: [
      {
        from: "if (slot.dead === undefined && !slot.suspect) {\n          slot.suspect = true;",
        to: "if (slot.dead === undefined && !slot.suspect) {\n          declareDead(slot, row, effect.seq);",
      },
    ],
  },
  core(
    "a listing from before the claim can deny the row",
    "if (slot.rowSeq >= effect.seq) continue;\n      const listed = byId.get(row.id);\n      if (listed === undefined) {\n        if (slot.dead === undefined && !slot.suspect) {\n          slot.suspect = true;",
    "const listed = byId.get(row.id);\n      if (listed === undefined) {\n        if (slot.dead === undefined && !slot.suspect) {\n          declareDead(slot, row, effect.seq);",
  ),
  core(
    "a failed read is read as absence",
    "} else if (result.absent) {\n        slot.attempt = 0;\n        slot.retryAtMs = 0;\n        declareDead",
    "} else if (!result.ok) {\n        slot.attempt = 0;\n        slot.retryAtMs = 0;\n        declareDead",
  ),
  core(
    "the end of a lease is published from the cached deadline",
    "// The cached deadline is not the last word: an archive lifecycle moves leases on the node.\n      checkLease(slot);",
    'declareDead(slot, row, seq);\n      return bury(slot, row, { reason: "SandboxLeaseExpired", atMs: row.deadlineMs, seq });',
  ),
  core(
    "a lost VM goes unnoticed when the orphan scan is off",
    "if (listing === undefined && listAtMs === Number.POSITIVE_INFINITY) listAtMs = mono + routineMs;",
    "",
  ),
  // ---- recovery
  core(
    "a VM from before the intent is taken for the lost one",
    "row.claimedAtMs >= intent.atMs - slackOf(row.claimedAtMs) &&",
    "",
  ),
  core(
    "the first of several candidates is taken",
    "if (candidates.length === 1 && only !== undefined) {",
    "if (only !== undefined) {",
  ),
  core(
    "the claim-id annotation alone proves whose a VM is",
    "if (listed.claimRef === slot.key && !isHeld(listed.id)) return true;",
    "if (now > 0) return true;",
  ),
  core(
    "a Pod that ran here gets another VM",
    'if (pod.phase !== "Running" && pod.claimId === "") return false;',
    'if (pod.phase !== "") return false;',
  ),
  core(
    "a deleted Pod is let go before its claim-id is followed",
    "if (!settled && !isTerminal(pod) && mayHaveRun(slot, pod)) return lookBack(slot, pod);",
    "",
  ),
  // ---- the watch and the API
  core(
    "the end of a former generation ends the Pod (stale UID)",
    "if (slot === undefined || (slot.pod !== undefined && slot.pod.uid !== event.uid)) return;",
    "if (slot === undefined) return;",
  ),
  core("events out of their order count", "if (isLate(pod.resourceVersion)) return;", ""),
  core(
    "Pods that a complete list lacks stay known",
    "if (slot.pod !== undefined && slot.seenIn !== generation) podLeft(slot, undefined);",
    "if (slot.pod !== undefined && slot.seenIn !== generation) continue;",
  ),
  core(
    "a push hides what someone wrote after it (Ready=False stays)",
    'if (version === "" || !isNewer(pod.resourceVersion, version)) {',
    "{",
  ),
  core(
    "a push that failed is not made again",
    "slot.publishAtMs = mono + backoff(slot.publishAttempt++);\n        return;",
    "slot.publishHeld = true;\n        return;",
  ),
  core(
    "an answer that comes late counts for the call after it",
    "if (slot === undefined || slot.busy?.seq !== effect.seq) return;",
    "if (slot === undefined || slot.busy === undefined) return;",
  ),
  core(
    "a Pod that has ended is served",
    "if (isTerminal(pod)) {\n      // It is left alone",
    "if (now < 0) {\n      // It is left alone",
  ),
  // ---- options and time
  core(
    "an evicted Pod claims again before its end is heard of",
    "if (slot.evictedUid === pod.uid) return;",
    "",
  ),
  {
    mistake: "a stranger's Pod of the same name supersedes",
    file: CORE,
    edits: [
      { from: "(current.ownerUid ?? row.authority) === row.authority &&", to: "" },
      { from: "if (current.ownerUid !== row.authority) return false;", to: "" },
    ],
  },
  core(
    "leases are renewed unasked",
    "if ((renewLeases || pod.renew) && !slot.renewRefused",
    "if (!slot.renewRefused",
  ),
  core(
    "waits run on the wall clock",
    "mono = atMonotonicMs;\n    switch",
    "mono = atMs - nowMs + monotonicMs;\n    switch",
  ),
  core(
    "a due listing makes the timer spin while another is under way",
    "nextDueMs: () => (listing === undefined ? Math.min(dueMs, listAtMs) : dueMs),",
    "nextDueMs: () => Math.min(dueMs, listAtMs),",
  ),
  {
    mistake: "a torn write in the journal is left in place (store)",
    file: "lib/state/store.ts",
    edits: [{ from: "if (!cutBack(journal)) broken = message;", to: "" }],
    realStore: true,
  },
  {
    mistake: "a second process may open the table (store)",
    file: "lib/state/place.ts",
    edits: [{ from: 'if (answer === "taken") {', to: 'if (answer === "taken" || answer === "held") {' }],
    realStore: true,
  },
];
