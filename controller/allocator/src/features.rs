//! Which parts of the API are switched on, and which of upstream's variants answers for them.

use serde::{Deserialize, Serialize};

/// What upstream's allocator can be told to do; the names are its own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
#[expect(clippy::struct_excessive_bools, reason = "they are switches, one a feature")]
pub struct Features {
    /// Requests may ask for devices that are in use.
    pub admin_access: bool,
    /// Devices can exclude each other.
    pub compatibility_groups: bool,
    /// Devices may be allocated several times.
    pub consumable_capacity: bool,
    /// Requests may define attributes.
    pub derived_attributes: bool,
    /// Devices may have to be made ready first.
    pub device_binding_and_status: bool,
    /// Devices may have to be tolerated.
    pub device_taints: bool,
    /// Ranges of capacity may be finer than one.
    pub fractional_capacity_range: bool,
    /// Attributes may have several values.
    pub list_type_attributes: bool,
    /// Slices may need no call on the node.
    pub optional_node_operations: bool,
    /// Devices may share counters.
    pub partitionable_devices: bool,
    /// Requests may have alternatives.
    pub prioritized_list: bool,
}

impl Features {
    /// Switches on what a feature gate stands for; whether there is one of that name.
    pub fn enable(&mut self, gate: &str) -> bool {
        let feature = match gate {
            "DRAAdminAccess" => &mut self.admin_access,
            "DRADeviceCompatibilityGroups" => &mut self.compatibility_groups,
            "DRAConsumableCapacity" => &mut self.consumable_capacity,
            "DRADerivedAttributes" => &mut self.derived_attributes,
            "DRADeviceBindingConditions+DRAResourceClaimDeviceStatus" => &mut self.device_binding_and_status,
            "DRADeviceTaints" => &mut self.device_taints,
            "DRAFractionalCapacityRange" => &mut self.fractional_capacity_range,
            "DRAListTypeAttributes" => &mut self.list_type_attributes,
            "DRAOptionalNodeOperations" => &mut self.optional_node_operations,
            "DRAPartitionableDevices" => &mut self.partitionable_devices,
            "DRAPrioritizedList" => &mut self.prioritized_list,
            _ => return false,
        };
        *feature = true;
        true
    }

    /// The variant that upstream would take, were its oldest one not there: that one's answers are random.
    pub fn variant(self) -> Variant {
        let alpha = self.compatibility_groups
            || self.derived_attributes
            || self.list_type_attributes
            || self.optional_node_operations;
        if alpha { Variant::Experimental } else { Variant::Incubating }
    }
}

/// Upstream keeps several allocators of different age; these two have the same answers where both know all features.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Variant {
    /// What clusters run.
    Incubating,
    /// What runs as soon as an alpha feature is on.
    Experimental,
}
