//! Why a pod waits for devices: one closed list, which Events, the pod's condition, metrics and `kubectl aliquot` share.

use std::fmt;

/// Why a pod waits. Of several reasons the first one here is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// The claim, its class or a config is wrong.
    InvalidRequest,
    /// No device anywhere is what is asked for.
    SelectorMatchesNothing,
    /// No node has that many such devices, even if all were free.
    NeverFits,
    /// The claim also asks for devices that kube-scheduler may give to somebody else at the same time.
    ForeignDevices,
    /// Somebody else holds the pod back.
    ForeignGate,
    /// Slices of some nodes are missing.
    DriverNotReady,
    /// Other pods have the devices, or the nodes that have some can't take the pod.
    NoDevicesFit,
    /// It hasn't been looked at yet, or what it names isn't there yet.
    NotEvaluated,
}

/// Who can do something about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Waiting won't help: the request has to change.
    Fix,
    /// An admin.
    Admin,
    /// Time.
    Wait,
}

impl Reason {
    /// All of them, in order.
    pub const ALL: [Self; 8] = [
        Self::InvalidRequest,
        Self::SelectorMatchesNothing,
        Self::NeverFits,
        Self::ForeignDevices,
        Self::ForeignGate,
        Self::DriverNotReady,
        Self::NoDevicesFit,
        Self::NotEvaluated,
    ];

    /// As objects and metrics spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InvalidRequest => "InvalidRequest",
            Self::SelectorMatchesNothing => "SelectorMatchesNothing",
            Self::NeverFits => "NeverFits",
            Self::ForeignDevices => "ForeignDevices",
            Self::ForeignGate => "ForeignGate",
            Self::DriverNotReady => "DriverNotReady",
            Self::NoDevicesFit => "NoDevicesFit",
            Self::NotEvaluated => "NotEvaluated",
        }
    }

    /// Who can do something about it.
    pub fn class(self) -> Class {
        match self {
            Self::InvalidRequest | Self::SelectorMatchesNothing | Self::NeverFits => Class::Fix,
            Self::ForeignDevices | Self::DriverNotReady => Class::Admin,
            Self::ForeignGate | Self::NoDevicesFit | Self::NotEvaluated => Class::Wait,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

impl Class {
    /// As metrics spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Fix => "fix",
            Self::Admin => "admin",
            Self::Wait => "wait",
        }
    }
}
