//! Devices that are measured before they are used: LB-BSP's GPU workers.

use super::{Cost, Profile, ProfilePoint};
use crate::WorkerId;

/// What is known of each worker's device. It outlasts the worker's leaving: who comes back is not measured again.
#[derive(Debug)]
pub struct Devices {
    batch: u32,
    devices: Vec<DeviceState>,
}

#[derive(Debug, Clone, Default)]
struct DeviceState {
    points: Vec<ProfilePoint>,
    profile: Option<Profile>,
}

impl Devices {
    /// Devices that nothing is known of, for a user who chose batches of this size: that much fits.
    pub fn new(batch: u32) -> Self {
        Devices { batch, devices: Vec::new() }
    }

    fn device_mut(&mut self, worker: WorkerId) -> &mut DeviceState {
        if worker.index() >= self.devices.len() {
            self.devices.resize_with(worker.index() + 1, DeviceState::default);
        }
        &mut self.devices[worker.index()]
    }

    /// A batch was measured. Only those that [`probe`](Devices::probe) asked for count.
    pub fn observe(&mut self, worker: WorkerId, point: ProfilePoint) {
        let batch = self.batch;
        let device = self.device_mut(worker);
        if device.profile.is_some() || Profile::next_probe(&device.points, batch) != Some(point.samples) {
            return;
        }
        let memory = point.memory.filter(|memory| memory.is_finite() && (0.0..=1.0).contains(memory));
        // A time that can't be is counted as next to none, so that measuring comes to an end.
        let seconds = if point.seconds.is_finite() { point.seconds.max(1e-9) } else { 1e-9 };
        device.points.push(ProfilePoint { seconds, memory, ..point });
        if Profile::next_probe(&device.points, batch).is_none() {
            device.profile =
                Some(Profile::fit(&device.points).unwrap_or_else(|| Profile::rough(&device.points, batch)));
        }
    }

    /// The size that the worker is to be measured with next; `None` if enough is known of it.
    pub fn probe(&self, worker: WorkerId) -> Option<u32> {
        match self.devices.get(worker.index()) {
            Some(device) if device.profile.is_some() => None,
            Some(device) => Profile::next_probe(&device.points, self.batch),
            None => Profile::next_probe(&[], self.batch),
        }
    }

    /// What samples cost the worker, without communication; `None` while it is being measured.
    pub fn cost(&self, worker: WorkerId) -> Option<Cost> {
        Some(self.devices.get(worker.index())?.profile?.cost())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKER: WorkerId = WorkerId(1);

    fn measure(devices: &mut Devices, seconds: impl Fn(u32) -> f64) {
        while let Some(samples) = devices.probe(WORKER) {
            assert_eq!(devices.cost(WORKER), None);
            devices.observe(WORKER, ProfilePoint { samples, seconds: seconds(samples), memory: None });
        }
    }

    #[test]
    fn a_device_is_measured_once() {
        let mut devices = Devices::new(64);
        // A stale report of another size is passed over.
        devices.observe(WORKER, ProfilePoint { samples: 64, seconds: 9.0, memory: None });
        measure(&mut devices, |samples| 0.1 + 0.01 * f64::from(samples));
        let cost = devices.cost(WORKER).unwrap();
        assert!((cost.seconds(50) - 0.6).abs() < 1e-9, "{cost:?}");
        devices.observe(WORKER, ProfilePoint { samples: 8, seconds: 9.0, memory: None });
        assert_eq!(devices.cost(WORKER), Some(cost));
    }

    #[test]
    fn nonsense_ends_in_something_that_can_be_used() {
        for nonsense in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            for batch in [1, 64] {
                let mut devices = Devices::new(batch);
                measure(&mut devices, |_| nonsense);
                let cost = devices.cost(WORKER).unwrap();
                assert!(cost.per_sample > 0.0 && cost.least <= cost.most && cost.seconds(1) >= 0.0, "{cost:?}");
            }
        }
    }
}
