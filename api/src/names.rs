//! Names that are part of the contract with users and with the cluster.

/// The driver's name, where a site gives it no other.
pub const DRIVER: &str = "gpu.aliquot.dev";

/// The group and version of the configs in claims and classes.
pub const CONFIG_API_VERSION: &str = "aliquot.dev/v1alpha1";

/// The attribute that says which form of a GPU a device is.
pub const TYPE: &str = "type";

/// [`TYPE`] of a whole GPU.
pub const TYPE_GPU: &str = "gpu";

/// [`TYPE`] of a MIG device.
pub const TYPE_MIG: &str = "mig";

/// The taint of devices whose driver doesn't answer, as while it is being replaced.
pub const NOT_READY_TAINT: &str = "aliquot.dev/driver-not-ready";

/// The taint of devices of a GPU with a critical error. Its value is the error's number (XID).
pub const UNHEALTHY_TAINT: &str = "aliquot.dev/unhealthy";

/// The domain of the attributes that Kubernetes defines for all drivers.
pub const STANDARD_DOMAIN: &str = "resource.kubernetes.io";

/// The taint that keeps kube-scheduler from allocating devices where the controller does. Only a taint with this key, [`FENCE_VALUE`]
/// and the effect `NoSchedule` that comes from the driver's own slice is a fence.
pub const FENCE_TAINT: &str = "aliquot.dev/allocated-by-controller";

/// The value of [`FENCE_TAINT`].
pub const FENCE_VALUE: &str = "true";

/// The scheduling gate of pods whose claims the controller hasn't allocated yet.
pub const ALLOCATION_GATE: &str = "aliquot.dev/allocation";

/// The condition of a pod that says whether its claims are allocated, and why not.
pub const DEVICES_ALLOCATED: &str = "aliquot.dev/DevicesAllocated";
