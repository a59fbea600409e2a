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
