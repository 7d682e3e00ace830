/** Which build this is; scripts/build fills the three in with --define. */
declare const VK_VERSION: string | undefined;
declare const VK_COMMIT: string | undefined;
declare const VK_BUILD_DATE: string | undefined;

/** Semantic version, published as the Node's kubeletVersion. */
export const version: string = typeof VK_VERSION === "string" ? VK_VERSION : "0.1.0-dev";
/** Git commit the binary was built from. */
export const commit: string = typeof VK_COMMIT === "string" ? VK_COMMIT : "unknown";
/** When it was built, RFC 3339. */
export const buildDate: string = typeof VK_BUILD_DATE === "string" ? VK_BUILD_DATE : "unknown";
