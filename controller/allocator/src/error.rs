//! What ends an allocation for all nodes.

use aliquot_api::quantity::QuantityError;

/// Something that is wrong with the claims, the classes or the slices. The scheduler tries no other node either.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// `firstAvailable` without its feature.
    #[error("claim {claim}, request {request}: alternatives need the feature DRAPrioritizedList")]
    PrioritizedListOff {
        /// Namespace and name.
        claim: String,
        /// Its name.
        request: String,
    },
    /// `capacity` without its feature.
    #[error("claim {claim}, request {request}: capacity needs the feature DRAConsumableCapacity")]
    ConsumableCapacityOff {
        /// Namespace and name.
        claim: String,
        /// Its name.
        request: String,
    },
    /// `derivedAttributes` without its feature.
    #[error("claim {claim}, request {request}: derived attributes need the feature DRADerivedAttributes")]
    DerivedAttributesOff {
        /// Namespace and name.
        claim: String,
        /// Its name.
        request: String,
    },
    /// `adminAccess` without its feature.
    #[error("claim {claim}, request {request}: admin access needs the feature DRAAdminAccess")]
    AdminAccessOff {
        /// Namespace and name.
        claim: String,
        /// Its name.
        request: String,
    },
    /// Neither `exactly` nor `firstAvailable`.
    #[error("claim {claim}, request {request} asks for nothing that is known")]
    UnknownRequest {
        /// Namespace and name.
        claim: String,
        /// Its name.
        request: String,
    },
    /// A selector that isn't CEL.
    #[error("claim {claim}, request {request}: selector #{index} is of no known kind")]
    UnknownSelector {
        /// Namespace and name.
        claim: String,
        /// Its name.
        request: String,
        /// Its position.
        index: usize,
    },
    /// Neither `ExactCount` nor `All`.
    #[error("claim {claim}, request {request}: unknown allocation mode {mode:?}")]
    UnknownMode {
        /// Namespace and name.
        claim: String,
        /// Its name.
        request: String,
        /// What it says.
        mode: String,
    },
    /// A constraint without an attribute.
    #[error("claim {claim}: constraint #{index} is of no known kind")]
    UnknownConstraint {
        /// Namespace and name.
        claim: String,
        /// Its position.
        index: usize,
    },
    /// The class is missing.
    #[error("claim {claim}, request {request}: there is no device class {class:?}")]
    NoClass {
        /// Namespace and name.
        claim: String,
        /// Its name.
        request: String,
        /// What it says.
        class: String,
    },
    /// All devices are asked for while not all are known.
    #[error("claim {claim}, request {request} asks for all devices, but not all slices of pool {pool} are there")]
    AllOfIncomplete {
        /// Namespace and name.
        claim: String,
        /// Its name.
        request: String,
        /// Driver and name.
        pool: String,
    },
    /// All devices are asked for, and some can't be trusted.
    #[error("claim {claim}, request {request} asks for all devices, but pool {pool} is invalid: {reason}")]
    AllOfInvalid {
        /// Namespace and name.
        claim: String,
        /// Its name.
        request: String,
        /// Driver and name.
        pool: String,
        /// What is wrong with it.
        reason: String,
    },
    /// All devices are asked for, and a constraint allows only some.
    #[error("claim {claim}, request {request} asks for all devices, but a constraint excludes {device}")]
    AllExcluded {
        /// Namespace and name.
        claim: String,
        /// Its name.
        request: String,
        /// Its id.
        device: String,
    },
    /// More devices than a claim can have.
    #[error("claim {claim}, request {request}: with {count} more devices it is more than the 32 that a claim can have")]
    TooManyDevices {
        /// Namespace and name.
        claim: String,
        /// Its name.
        request: String,
        /// How many this request adds at least.
        count: i64,
    },
    /// A selector or derived attribute that isn't valid CEL.
    #[error("{owner}: {expression:?} is no valid expression: {message}")]
    Expression {
        /// Whose it is.
        owner: String,
        /// Its text.
        expression: String,
        /// What is wrong.
        message: String,
    },
    /// A selector or derived attribute that has no value for some device.
    #[error("{owner}: {expression:?} can't be evaluated for device {device}: {message}")]
    Evaluation {
        /// Whose it is.
        owner: String,
        /// Its text.
        expression: String,
        /// Its id.
        device: String,
        /// What is wrong.
        message: String,
    },
    /// A capacity that can't be calculated.
    #[error("claim {claim}, request {request}: capacity {capacity} of device {device}: {reason}")]
    Capacity {
        /// Namespace and name.
        claim: String,
        /// Its name.
        request: String,
        /// Its id.
        device: String,
        /// Its name.
        capacity: String,
        /// What is wrong.
        reason: Box<CapacityError>,
    },
    /// A node selector that isn't valid.
    #[error("slice {slice}: node selector: {message}")]
    NodeSelector {
        /// Its name.
        slice: String,
        /// What is wrong.
        message: String,
    },
    /// A node selector that can't become part of an allocation.
    #[error("claim {claim}: device {device} has a node selector of {terms} terms; only one can be used")]
    NodeSelectorTerms {
        /// Namespace and name.
        claim: String,
        /// Its id.
        device: String,
        /// How many it has.
        terms: usize,
    },
    /// A counter that is no quantity.
    #[error("pool {pool}: {error}")]
    Counter {
        /// Driver and name.
        pool: String,
        /// What is wrong.
        error: QuantityError,
    },
}

/// Why a capacity can't be calculated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CapacityError {
    /// Too large for the arithmetic of ranges.
    #[error("what is asked for is too large for its range")]
    Unrepresentable,
    /// Nobody can have less than nothing.
    #[error("what would be used is negative")]
    Negative,
    /// Would divide by zero.
    #[error("its range has no usable minimum or step")]
    Range,
    /// No quantity.
    #[error(transparent)]
    Quantity(#[from] QuantityError),
}
