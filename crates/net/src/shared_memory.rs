//! Page-aligned vectors of values, private or shared with another process.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

use memmap2::{Advice, MmapMut, MmapOptions, MmapRaw};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};

use crate::private_pages;

/// Which processes may write a shared region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RegionWriter {
    /// Only the process that created it: parameters.
    Owner,
    /// Also the process that opens it: gradients.
    Peer,
}

/// How a process maps a model that another one writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ModelMapping {
    /// What this process writes there is its own.
    #[default]
    Private,
    /// Nothing can be written there. A device may read it directly, which pins the pages.
    ReadOnly,
}

/// A vector of `f32` in its own pages.
///
/// A shared region is an anonymous file (`memfd`): the system frees it with the last process that maps it, even if that
/// process crashes. Its size is sealed, so that a peer can't shrink it while another process uses it.
#[derive(Debug)]
pub(crate) struct Region {
    map: Arc<MmapRaw>,
    /// Where its values are in the mapping. Parts of a region share one.
    start: usize,
    length: usize,
    file: Option<Arc<OwnedFd>>,
    /// How it is mapped if another process writes it.
    mapping: Option<ModelMapping>,
}

/// The memory of a vector of values, for code that can't borrow it: a tensor of another library. It stays mapped while a
/// handle exists.
///
/// The protocol says when its values may be read or written: those of a task's model from the moment the task is taken until
/// it is reported, and those of its result in the same time.
#[derive(Debug, Clone)]
pub struct ValueMemory {
    map: Arc<MmapRaw>,
    length: usize,
    mapping: Option<ModelMapping>,
}

impl ValueMemory {
    /// The address of the first value.
    pub fn address(&self) -> *mut f32 {
        self.map.as_mut_ptr().cast()
    }

    /// The number of values.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Whether nothing can be written there.
    pub fn is_read_only(&self) -> bool {
        self.mapping == Some(ModelMapping::ReadOnly)
    }

    /// Forgets what this process has written to a model in shared memory. Its pages are private from the first write on, and
    /// would no longer follow the server's. To be called when a task begins that uses them again. Other memory stays as it is.
    ///
    /// # Errors
    /// If the system can't say which pages those are.
    pub fn forget_writes(&self) -> io::Result<()> {
        if self.mapping != Some(ModelMapping::Private) {
            return Ok(());
        }
        for range in private_pages::find(self.map.as_ptr() as usize, self.length * size_of::<f32>())? {
            // SAFETY: the pages are a part of this mapping, and the file behind it still has their values. Whoever reads them
            // meanwhile sees values that the server wrote.
            unsafe { rustix::mm::madvise(range.start as *mut _, range.len(), rustix::mm::Advice::LinuxDontNeed)? };
        }
        Ok(())
    }
}

impl Region {
    /// Allocates `length` zeros for this process alone.
    pub(crate) fn private(length: usize) -> io::Result<Self> {
        let map = MmapMut::map_anon(bytes(length)?)?;
        // Only a hint: without huge pages it is a little slower.
        let _ = map.advise(Advice::HugePage);
        Ok(Region { map: Arc::new(map.into()), start: 0, length, file: None, mapping: None })
    }

    /// Allocates `length` zeros that can be shared with another process.
    pub(crate) fn shared(length: usize, writer: RegionWriter) -> io::Result<Self> {
        let file = memfd_create("paceline", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, bytes(length)? as u64)?;
        let map = MmapOptions::new().len(bytes(length)?).map_raw(&file)?;
        fcntl_add_seals(&file, seals(writer))?;
        Ok(Region { map: Arc::new(map), start: 0, length, file: Some(Arc::new(file)), mapping: None })
    }

    /// Opens a region for gradients of `length` values behind a file descriptor that another process sent.
    pub(crate) fn open(file: OwnedFd, length: usize) -> io::Result<Self> {
        let size = checked_size(&file, length, RegionWriter::Peer)?;
        let map = MmapOptions::new().len(size).map_raw(&file)?;
        Ok(Region { map: Arc::new(map), start: 0, length, file: None, mapping: None })
    }

    /// Opens the model of `length` values behind a file descriptor that another process sent, which writes it.
    pub(crate) fn open_model(file: OwnedFd, length: usize, mapping: ModelMapping) -> io::Result<Self> {
        let mut options = MmapOptions::new();
        let options = options.len(checked_size(&file, length, RegionWriter::Owner)?);
        let map = match mapping {
            // SAFETY: its size is sealed, and no reference into it exists yet; see `values` for those that will.
            ModelMapping::Private => MmapRaw::from(unsafe { options.map_copy(&file) }?),
            ModelMapping::ReadOnly => options.map_raw_read_only(&file)?,
        };
        Ok(Region { map: Arc::new(map), start: 0, length, file: None, mapping: Some(mapping) })
    }

    /// Cuts it into the parts of these ranges, which follow each other. [`Region::join`] makes it whole again.
    ///
    /// # Panics
    /// If the ranges overlap or exceed the region.
    pub(crate) fn split(self, ranges: &[Range<usize>]) -> Vec<Region> {
        let mut end = 0;
        let part = |range: &Range<usize>| {
            assert!(end <= range.start && range.start <= range.end && range.end <= self.length, "{range:?}");
            end = range.end;
            let (map, start, length) = (self.map.clone(), self.start + range.start, range.len());
            Region { map, start, length, file: self.file.clone(), mapping: self.mapping }
        };
        ranges.iter().map(part).collect()
    }

    /// The region that all these parts are of, in order. `None` if they are not.
    pub(crate) fn join(parts: Vec<Region>) -> Option<Region> {
        parts.into_iter().map(Some).reduce(|whole, part| {
            let (whole, part) = (whole?, part?);
            let follows = Arc::ptr_eq(&whole.map, &part.map) && whole.start + whole.length == part.start;
            follows.then(|| Region { length: whole.length + part.length, ..whole })
        })?
    }

    /// A handle to its memory.
    pub(crate) fn memory(&self) -> ValueMemory {
        ValueMemory { map: self.map.clone(), length: self.length, mapping: self.mapping }
    }

    /// Identifies its memory, also after that is freed.
    pub(crate) fn identity(&self) -> MemoryIdentity {
        MemoryIdentity(Arc::downgrade(&self.map))
    }

    /// Closes the file descriptor after it was sent; the memory stays mapped.
    pub(crate) fn close_file(&mut self) {
        self.file = None;
    }

    /// The file descriptor to send, if the region is shared.
    pub(crate) fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(|file| file.as_fd())
    }

    /// The values.
    pub(crate) fn values(&self) -> &[f32] {
        // SAFETY: the mapping is page-aligned, at least `length` values long and lives as long as `self`; every bit
        // pattern is an `f32`. By the protocol no process writes while another reads: the server writes a parameter
        // buffer only when no task uses it, and a dismissed worker counts as using its buffers until it has closed its
        // connection. A process of the same user that breaks the protocol can change numbers at any time, which no
        // check of ours can prevent, but it can't unmap the pages: their size is sealed, which `open` verifies.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().cast::<f32>().add(self.start), self.length) }
    }

    /// The values, for writing. Only for regions that this process may write.
    pub(crate) fn values_mut(&mut self) -> &mut [f32] {
        // SAFETY: as in `values`; `&mut self` excludes other references in this process, since parts do not overlap.
        unsafe { std::slice::from_raw_parts_mut(self.map.as_mut_ptr().cast::<f32>().add(self.start), self.length) }
    }
}

/// Tells the memories of regions apart. Parts of a region have the same memory.
#[derive(Debug)]
pub(crate) struct MemoryIdentity(Weak<MmapRaw>);

impl PartialEq for MemoryIdentity {
    fn eq(&self, other: &Self) -> bool {
        self.0.ptr_eq(&other.0)
    }
}

impl AsRef<[f32]> for Region {
    fn as_ref(&self) -> &[f32] {
        self.values()
    }
}

/// The size in bytes of a region of `length` values. An error if the file has another one, or not the seals of its kind.
fn checked_size(file: &OwnedFd, length: usize, writer: RegionWriter) -> io::Result<usize> {
    let size = bytes(length)?;
    let found = fstat(file)?.st_size;
    if found != size as i64 {
        let text = format!("shared buffer of {found} bytes: expected {size}");
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    let (sealed, required) = (fcntl_get_seals(file)?, seals(writer));
    if !sealed.contains(required) {
        let text = format!("shared buffer with the seals {sealed:?}: expected {required:?}");
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    Ok(size)
}

/// The seals of a shared region: its size is fixed, and parameters can be written by their owner only.
fn seals(writer: RegionWriter) -> SealFlags {
    let size = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    if writer == RegionWriter::Owner { size | SealFlags::FUTURE_WRITE } else { size }
}

fn bytes(length: usize) -> io::Result<usize> {
    // An empty vector is allowed, an empty mapping is not.
    let bytes = length.max(1).checked_mul(size_of::<f32>());
    bytes
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, format!("{length} values exceed the address space")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_disjoint_and_make_up_the_whole() {
        let mut whole = Region::private(10).unwrap();
        whole.values_mut().copy_from_slice(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]);
        let mut parts = whole.split(&[0..4, 4..4, 4..10]);
        assert_eq!(parts[2].values(), [4.0, 5.0, 6.0, 7.0, 8.0, 9.0]);
        parts[2].values_mut()[0] = -1.0;
        parts[0].values_mut()[3] = -2.0;
        let whole = Region::join(parts).unwrap();
        assert_eq!(whole.values()[..6], [0.0, 1.0, 2.0, -2.0, -1.0, 5.0]);
        assert!(Region::join(vec![whole, Region::private(1).unwrap()]).is_none());
    }

    #[test]
    fn a_shared_region_is_seen_by_both_sides_and_protected() {
        let mut created = Region::shared(1000, RegionWriter::Owner).unwrap();
        created.values_mut()[7] = 2.5;
        let file = || created.file().unwrap().try_clone_to_owned().unwrap();
        for mapping in [ModelMapping::Private, ModelMapping::ReadOnly] {
            let opened = Region::open_model(file(), 1000, mapping).unwrap();
            assert_eq!(opened.values()[7], 2.5);
        }
        assert!(ftruncate(file(), 0).is_err(), "the size is sealed");
        assert!(Region::open(file(), 1000).is_err(), "the peer may not write parameters");
        let too_short = Region::open_model(file(), 999, ModelMapping::Private).unwrap_err().to_string();
        assert!(too_short.contains("4000 bytes: expected"), "{too_short}");

        let shared = Region::shared(10, RegionWriter::Peer).unwrap();
        let file = shared.file().unwrap().try_clone_to_owned().unwrap();
        Region::open(file, 10).unwrap().values_mut()[9] = -1.0;
        assert_eq!(shared.values()[9], -1.0);
    }

    #[test]
    fn what_a_reader_writes_is_its_own_and_can_be_forgotten() {
        const LENGTH: usize = 100_000;
        let mut owner = Region::shared(LENGTH, RegionWriter::Owner).unwrap();
        let file = owner.file().unwrap().try_clone_to_owned().unwrap();
        let mut reader = Region::open_model(file, LENGTH, ModelMapping::Private).unwrap();
        let memory = reader.memory();
        for version in 1..4 {
            owner.values_mut().fill(version as f32);
            memory.forget_writes().unwrap();
            assert!(reader.values().iter().all(|&value| value == version as f32));
            for index in [0, 1023, 1024, 50_000, LENGTH - 1] {
                reader.values_mut()[index] = -1.0;
            }
            assert!(owner.values().iter().all(|&value| value == version as f32));
        }
    }

    #[test]
    fn a_region_whose_size_is_not_sealed_is_refused() {
        let file = memfd_create("paceline-test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, 400).unwrap();
        let copy = file.try_clone().unwrap();
        let error = Region::open(copy, 100).unwrap_err().to_string();
        assert!(error.starts_with("shared buffer with the seals"), "{error}");
        fcntl_add_seals(&file, seals(RegionWriter::Peer)).unwrap();
        let copy = file.try_clone().unwrap();
        assert!(Region::open_model(copy, 100, ModelMapping::Private).is_err(), "others may write it");
        assert!(Region::open(file, 100).is_ok());
    }

    #[test]
    fn an_empty_region_is_allowed_and_a_huge_one_is_an_error() {
        assert!(Region::private(0).unwrap().values().is_empty());
        assert!(Region::private(usize::MAX).is_err());
    }
}
