//! Page-aligned vectors of values, private or shared with another process.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use memmap2::{Advice, MmapMut, MmapOptions, MmapRaw};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};

/// Who may write a shared region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Writer {
    /// Only the process that made it: parameters.
    Maker,
    /// The process that it is handed to as well: a gradient.
    Guest,
}

/// A vector of `f32` in its own pages.
///
/// A shared region is a file without a name (`memfd`): it is gone when the last process that maps it is, however that
/// ends. Its size is sealed, so that no peer can pull memory away from under another.
#[derive(Debug)]
pub(crate) struct Region {
    map: MmapRaw,
    length: usize,
    file: Option<OwnedFd>,
}

impl Region {
    /// `length` zeros for this process alone.
    pub(crate) fn private(length: usize) -> io::Result<Self> {
        let map = MmapMut::map_anon(bytes(length)?)?;
        // Only a hint: without huge pages everything works, a little slower.
        let _ = map.advise(Advice::HugePage);
        Ok(Region { map: map.into(), length, file: None })
    }

    /// `length` zeros that can be handed to another process.
    pub(crate) fn shared(length: usize, writer: Writer) -> io::Result<Self> {
        let file = memfd_create("paceline", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, bytes(length)? as u64)?;
        let map = MmapOptions::new().len(bytes(length)?).map_raw(&file)?;
        let mut seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        if writer == Writer::Maker {
            seals |= SealFlags::FUTURE_WRITE;
        }
        fcntl_add_seals(&file, seals)?;
        Ok(Region { map, length, file: Some(file) })
    }

    /// The region of `length` values behind a file descriptor that another process sent.
    pub(crate) fn open(file: OwnedFd, length: usize, writer: Writer) -> io::Result<Self> {
        let size = bytes(length)?;
        let found = fstat(&file)?.st_size;
        if found != size as i64 {
            let text = format!("a shared buffer of {found} bytes instead of {size}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        let mut options = MmapOptions::new();
        let map = match writer {
            Writer::Maker => options.len(size).map_raw_read_only(&file)?,
            Writer::Guest => options.len(size).map_raw(&file)?,
        };
        Ok(Region { map, length, file: None })
    }

    /// Gives the file descriptor up once it was handed over; the memory stays.
    pub(crate) fn close_file(&mut self) {
        self.file = None;
    }

    /// The file descriptor to hand over, where the region is shared.
    pub(crate) fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// The values.
    pub(crate) fn values(&self) -> &[f32] {
        // SAFETY: the mapping is page-aligned, at least `length` values long and lives as long as `self`; every bit
        // pattern is an `f32`. The protocol lets no process write while another reads; a peer that breaks it changes
        // numbers, nothing more, since its pages can't go away (the size is sealed).
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().cast(), self.length) }
    }

    /// The values, to be written. Only for regions that this process may write.
    pub(crate) fn values_mut(&mut self) -> &mut [f32] {
        // SAFETY: as in `values`; `&mut self` keeps this process from having other references.
        unsafe { std::slice::from_raw_parts_mut(self.map.as_mut_ptr().cast(), self.length) }
    }
}

fn bytes(length: usize) -> io::Result<usize> {
    // An empty mapping is not allowed, an empty vector is.
    let bytes = length.max(1).checked_mul(size_of::<f32>());
    bytes.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, format!("{length} values are too many")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_see_what_is_written_and_neither_can_cheat() {
        let mut made = Region::shared(1000, Writer::Maker).unwrap();
        made.values_mut()[7] = 2.5;
        let file = || made.file().unwrap().try_clone_to_owned().unwrap();
        let guest = Region::open(file(), 1000, Writer::Maker).unwrap();
        assert_eq!(guest.values()[7], 2.5);
        assert!(ftruncate(file(), 0).is_err(), "the size is sealed");
        assert!(Region::open(file(), 1000, Writer::Guest).is_err(), "guests may not write parameters");
        assert!(Region::open(file(), 999, Writer::Maker).unwrap_err().to_string().contains("4000 bytes instead of"));

        let shared = Region::shared(10, Writer::Guest).unwrap();
        let file = shared.file().unwrap().try_clone_to_owned().unwrap();
        Region::open(file, 10, Writer::Guest).unwrap().values_mut()[9] = -1.0;
        assert_eq!(shared.values()[9], -1.0);
    }

    #[test]
    fn no_values_are_a_vector_too() {
        assert!(Region::private(0).unwrap().values().is_empty());
        assert!(Region::private(usize::MAX).is_err());
    }
}
