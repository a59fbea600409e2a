//! Whose rules hold, and which of several solutions is wanted.

/// How to allocate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// As the scheduler of Kubernetes 1.37 does, device for device, with its faults.
    #[default]
    Parity,
    /// By the API's rules, and of all solutions the one that leaves the most to others.
    ///
    /// Whatever the scheduler would grant is granted, but for two things that the API doesn't allow:
    ///
    /// - A device that may be shared no longer, while somebody has a share of it, is not free
    ///   ([#140797](https://github.com/kubernetes/kubernetes/issues/140797)).
    /// - A pool whose slices don't agree how many they are is incomplete, whichever is listed first
    ///   ([#141117](https://github.com/kubernetes/kubernetes/issues/141117)).
    ///
    /// And some things are granted that the scheduler refuses:
    ///
    /// - Admin access takes no counters and no capacity, and keeps a device from nobody but requests of its own claim
    ///   ([#140729](https://github.com/kubernetes/kubernetes/issues/140729)).
    /// - A counter below zero blocks who takes of it, not all of the pool.
    /// - Expressions without a value for a device don't select it. They are an error only where there is no solution.
    /// - Devices with several node selector terms can be had on the node
    ///   ([#141214](https://github.com/kubernetes/kubernetes/issues/141214)).
    Placement,
}
