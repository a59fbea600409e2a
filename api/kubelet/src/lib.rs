//! The gRPC services between kubelet and a DRA driver, both sides: the plugin serves them, tests call them as kubelet does.
//!
//! Written after the wire format of Kubernetes 1.34 to 1.37. The name of a service in [`registration::PluginInfo`]
//! is not its gRPC name: kubelet looks for [`DRA_V1`] and then calls `k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin`.

// Generated code has no documentation and its own habits.
#![allow(missing_docs, clippy::pedantic, clippy::use_self, unused_qualifications)]

/// How kubelet spells the service [`v1`] in a registration.
pub const DRA_V1: &str = "v1.DRAPlugin";

/// How kubelet spells the service [`v1beta1`] in a registration.
pub const DRA_V1BETA1: &str = "v1beta1.DRAPlugin";

/// How kubelet spells the service [`health_v1`] in a registration, which here is its gRPC name too.
pub const HEALTH_V1: &str = "v1.DRAResourceHealth";

/// How kubelet spells the service [`health_v1alpha1`] in a registration.
pub const HEALTH_V1ALPHA1: &str = "v1alpha1.DRAResourceHealth";

/// The `type` of a DRA driver in a registration.
pub const PLUGIN_TYPE: &str = "DRAPlugin";

/// How a plugin introduces itself.
pub mod registration {
    tonic::include_proto!("pluginregistration");
}

/// Preparing and unpreparing claims, kubelet 1.34 and later.
pub mod v1 {
    tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1");
}

/// Preparing and unpreparing claims, older kubelets.
pub mod v1beta1 {
    tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1beta1");
}

/// The health of devices, kubelet 1.37 and later.
pub mod health_v1 {
    tonic::include_proto!("v1");
}

/// The health of devices, older kubelets.
pub mod health_v1alpha1 {
    tonic::include_proto!("v1alpha1");
}
