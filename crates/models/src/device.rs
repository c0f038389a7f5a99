//! Devices by name.

use burn::tensor::Device;
use thiserror::Error;

/// Why a device cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DeviceError {
    /// The name is unknown.
    #[error("unknown device '{found}'; expected cpu, cuda[:N] or wgpu[:N]")]
    Unknown {
        /// The given name.
        found: String,
    },
    /// This build has no support for devices of this kind.
    #[error("device '{found}' is not supported by this build: build with --features {feature}")]
    NotBuilt {
        /// The given name.
        found: String,
        /// The Cargo feature that adds support.
        feature: &'static str,
    },
    /// The machine has no device with this index.
    #[error("device '{found}' not found: this machine has {available} devices of this kind, numbered from 0")]
    Absent {
        /// The given name.
        found: String,
        /// Number of devices of this kind.
        available: usize,
    },
}

/// The device called `cpu`, `cuda`, `cuda:N` (feature `cuda`), `wgpu` or `wgpu:N` (feature `wgpu`).
///
/// N is the index of the device, 0 by default. On the CPU a replica computes on its caller's thread, and gives the same
/// bits every time and on every machine. GPUs do not guarantee an order of additions, so their bits may differ.
///
/// # Errors
/// If the name is unknown, the build does not support the device, or the machine does not have it.
pub fn device(name: &str) -> Result<Device, DeviceError> {
    let (kind, index) = match name.split_once(':') {
        Some((kind, index)) => (kind, index.parse().ok()),
        None => (name, Some(0)),
    };
    match (kind, index) {
        ("cpu", _) if kind == name => Ok(Device::flex()),
        ("cuda", Some(index)) => cuda(name, index),
        ("wgpu", Some(index)) => wgpu(name, index),
        _ => Err(DeviceError::Unknown { found: name.to_owned() }),
    }
}

#[cfg(feature = "cuda")]
fn cuda(name: &str, index: usize) -> Result<Device, DeviceError> {
    pick(burn::tensor::DeviceType::Cuda, name, index)
}

#[cfg(not(feature = "cuda"))]
fn cuda(name: &str, _index: usize) -> Result<Device, DeviceError> {
    Err(DeviceError::NotBuilt { found: name.to_owned(), feature: "cuda" })
}

#[cfg(feature = "wgpu")]
fn wgpu(name: &str, index: usize) -> Result<Device, DeviceError> {
    pick(burn::tensor::DeviceType::Wgpu, name, index)
}

#[cfg(not(feature = "wgpu"))]
fn wgpu(name: &str, _index: usize) -> Result<Device, DeviceError> {
    Err(DeviceError::NotBuilt { found: name.to_owned(), feature: "wgpu" })
}

#[cfg(any(feature = "cuda", feature = "wgpu"))]
fn pick(kind: burn::tensor::DeviceType, name: &str, index: usize) -> Result<Device, DeviceError> {
    let devices: Vec<Device> = Device::enumerate(kind).into_iter().collect();
    let available = devices.len();
    let device = devices.into_iter().nth(index);
    device.ok_or_else(|| DeviceError::Absent { found: name.to_owned(), available })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_always_exists_and_errors_name_what_is_expected() {
        assert_eq!(device("cpu"), Ok(Device::flex()));
        for name in ["", "gpu", "cpu:0", "cuda:", "cuda:x", "wgpu:-1"] {
            let error = device(name).unwrap_err().to_string();
            assert_eq!(error, format!("unknown device '{name}'; expected cpu, cuda[:N] or wgpu[:N]"));
        }
        let error = device("cuda:999999").unwrap_err().to_string();
        let expected = if cfg!(feature = "cuda") { "not found" } else { "build with --features cuda" };
        assert!(error.contains(expected), "{error}");
    }
}
