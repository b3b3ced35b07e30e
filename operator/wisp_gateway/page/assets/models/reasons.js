// Remedies for a failed model, by the reason in its status: shown where the gateway's message has none of its own.
// docs/operations.md has all of them.

const REMEDIES = {
  AccessDenied: "Put a valid token into the Secret of model.secretRef, and accept the model's licence on the hub.",
  CacheUnusable: "Make the cache directory writable for the pods' user.",
  ConfigError: "Change the setting that the message names.",
  ContainerRefused: "Install what the message names; most often NVIDIA's container runtime is missing.",
  DeviceFailed: "Check nvidia-smi and dmesg on the machine; replace the GPU if it is broken.",
  DiskFull: "Make room in the cache directory, or give it a larger volume.",
  DoesNotFit: "Shorten runtime.maxContext, lower runtime.maxConcurrent, quantize, or give it more memory (a larger GPU).",
  GpuOutOfMemory: "Something else uses memory on that GPU: stop it, or give the model a GPU of its own.",
  GpuUnavailable: "Install driver 580 or newer, or free a GPU.",
  ImagePullFailed: "Correct the image, or add a pull secret.",
  KernelFault: "It restarts automatically. If it happens again, report it with the pod's log.",
  KernelsMissing: "Choose another GPU or quantization; wisp-runtime kernels list shows what there is.",
  ModelNotFound: "Correct spec.model.uri or revision.",
  ModelUnsupported: "Choose a model of a family that the message lists.",
  NotAllowed: "Ask the administrator to open it, or change the spec.",
  OOMKilled: "Raise spec.resources.limits.memory.",
  SecretMissing: "Create the Secret, or the key in it, that the message names.",
  SourceUnreachable: "Check the network to the hub or bucket. It is retried automatically.",
  StartupTimedOut: "Raise rollout.startupDeadline if the download takes that long.",
  TokenizerUnreadable: "Add a tokenizer.json, or use a repository that has one.",
  Unschedulable: "Free or add a GPU, or ask for less.",
  WeightsUnreadable: "Fetch the model again: delete its directory in the cache.",
};

/** A sentence on what to do about `reason`; empty if `message` has one itself, or only it could. */
export function remedyOf(reason, message = "") {
  const told = message.replace(/ Tried \d+ times\.$/, "");
  const saysRemedy = /[.:;]\s+[A-Z]/.test(told); // a second sentence
  return saysRemedy ? "" : (REMEDIES[reason] ?? "");
}

/** "DoesNotFit" → "Does not fit". */
export function wordsOf(reason) {
  const words = (reason ?? "").replace(/([a-z])([A-Z])/g, "$1 $2").split(" ");
  return words.map((word, place) => (place && !/^[A-Z]{2}/.test(word) ? word.toLowerCase() : word)).join(" ");
}
