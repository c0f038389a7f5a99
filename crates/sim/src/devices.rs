//! GPU workers: time grows with the batch only once the device is saturated, and memory limits the batch (LB-BSP,
//! section 5.5).

use paceline_core::WorkerId;
use paceline_core::speed::Resources;

/// The batch size of the paper's coefficients.
const REFERENCE_BATCH: f64 = 380.0;

/// Slowdown of a task that does not fit into memory.
const SPILL_FACTOR: f64 = 10.0;

/// A type of device. Times are relative to a reference batch on the slowest type, communication included.
#[derive(Debug, Clone, Copy)]
struct DeviceType {
    per_sample: f64,
    fixed: f64,
    /// Below this number of samples the time is constant.
    saturated_at: f64,
    /// The number of samples that fills the memory.
    full_at: f64,
}

/// Cluster-C: four g2.2xlarge, two p2.xlarge and two g3.4xlarge, repeated. The bounds are published; the coefficients
/// are chosen so that they yield the published batch sizes.
fn device(worker: WorkerId) -> DeviceType {
    match worker.0 % 8 {
        0..=3 => DeviceType { per_sample: 0.00186, fixed: 0.23, saturated_at: 58.0, full_at: 384.0 },
        4..=5 => DeviceType { per_sample: 0.00115, fixed: 0.15, saturated_at: 92.0, full_at: 1184.0 },
        _ => DeviceType { per_sample: 0.000913, fixed: 0.12, saturated_at: 103.0, full_at: 788.0 },
    }
}

/// The time of a task of `size` reference batches on the worker's device, relative to one reference batch on the
/// slowest type, and the memory in use.
pub(crate) fn task(worker: WorkerId, size: f64) -> (f64, Resources) {
    let device = device(worker);
    let samples = REFERENCE_BATCH * size;
    let seconds = device.fixed + device.per_sample * samples.max(device.saturated_at);
    let memory = 0.1 + 0.9 * samples / device.full_at;
    let factor = if memory > 1.0 { SPILL_FACTOR } else { 1.0 };
    (seconds * factor, Resources { cpu: 0.0, memory: memory.min(1.0) })
}
