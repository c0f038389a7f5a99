//! Vectors of values that the server and this process share, as Python buffers.

use std::ffi::{c_int, c_void};
use std::ptr;

use paceline::net::ValueMemory;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

/// A vector of 32-bit values. It supports the buffer protocol, and stays mapped while a buffer of it exists.
#[pyclass(name = "Memory", module = "paceline._paceline", frozen)]
pub struct PyMemory(pub ValueMemory);

#[pymethods]
impl PyMemory {
    fn __len__(&self) -> usize {
        self.0.len()
    }

    /// The address of the first value.
    #[getter]
    fn address(&self) -> usize {
        self.0.address() as usize
    }

    /// Whether nothing can be written there.
    #[getter]
    fn is_read_only(&self) -> bool {
        self.0.is_read_only()
    }

    /// Forgets what this process has written to a model in shared memory.
    fn forget_writes(&self) -> PyResult<()> {
        Ok(self.0.forget_writes()?)
    }

    /// SAFETY: called by the interpreter with a valid `view`.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let memory = &slf.get().0;
        let (address, bytes) = (memory.address().cast::<c_void>(), memory.len() * size_of::<f32>());
        let bytes = isize::try_from(bytes).map_err(|_| PyBufferError::new_err("too long for a buffer"))?;
        // SAFETY: `view` is valid; the memory stays mapped while the object exists, which the buffer owns a reference to.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), address, bytes, 0, flags) };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }

    /// SAFETY: called by the interpreter with a view that `__getbuffer__` filled.
    unsafe fn __releasebuffer__(&self, view: *mut ffi::Py_buffer) {
        // SAFETY: as above. Nothing was allocated for the view.
        unsafe { (*view).internal = ptr::null_mut() };
    }
}
