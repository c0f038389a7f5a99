//! Which pages of a private mapping this process has written, so that they no longer follow the file behind it.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

/// The written pages among those with the given bytes, as ranges of addresses.
///
/// # Errors
/// If the system can't say which pages those are.
pub(crate) fn find(address: usize, bytes: usize) -> io::Result<Vec<Range<usize>>> {
    let page = rustix::param::page_size();
    let end = (address + bytes).next_multiple_of(page);
    let map = File::open("/proc/self/pagemap")?;
    match scan(&map, address..end) {
        // Linux before 6.7.
        Err(error) if [Some(libc::ENOTTY), Some(libc::EINVAL)].contains(&error.raw_os_error()) => {
            read(&map, address..end, page)
        }
        result => result,
    }
}

/// The argument of the system call `PAGEMAP_SCAN`.
#[repr(C)]
#[derive(Default)]
struct ScanArgument {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    ranges: u64,
    range_count: u64,
    most_pages: u64,
    inverted: u64,
    all_of: u64,
    any_of: u64,
    returned: u64,
}

#[repr(C)]
#[derive(Default, Clone, Copy)]
struct ScannedRange {
    start: u64,
    end: u64,
    categories: u64,
}

/// `_IOWR('f', 16, struct pm_scan_arg)`
const PAGEMAP_SCAN: libc::c_ulong =
    3 << 30 | (size_of::<ScanArgument>() as libc::c_ulong) << 16 | (b'f' as libc::c_ulong) << 8 | 16;

/// Categories of pages.
const IS_OF_FILE: u64 = 1 << 2;
const IS_PRESENT: u64 = 1 << 3;
const IS_SWAPPED: u64 = 1 << 4;

/// Lets the system look at the pages. It returns only ranges, so that it takes little time if nothing was written.
fn scan(map: &File, pages: Range<usize>) -> io::Result<Vec<Range<usize>>> {
    let mut found = Vec::new();
    let mut start = pages.start as u64;
    while start < pages.end as u64 {
        let mut ranges = [ScannedRange::default(); 64];
        let mut argument = ScanArgument {
            size: size_of::<ScanArgument>() as u64,
            start,
            end: pages.end as u64,
            ranges: ranges.as_mut_ptr() as u64,
            range_count: ranges.len() as u64,
            inverted: IS_OF_FILE,
            all_of: IS_OF_FILE,
            any_of: IS_PRESENT | IS_SWAPPED,
            ..ScanArgument::default()
        };
        // SAFETY: the argument has the size that it says, and the ranges have room for as many as it says.
        let count = unsafe { libc::ioctl(map.as_raw_fd(), PAGEMAP_SCAN, &raw mut argument) };
        let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
        found.extend(ranges[..count].iter().map(|range| range.start as usize..range.end as usize));
        start = argument.walk_end;
    }
    Ok(found)
}

/// Bits of an entry of the page map.
const ENTRY_PRESENT: u64 = 1 << 63;
const ENTRY_SWAPPED: u64 = 1 << 62;
const ENTRY_OF_FILE: u64 = 1 << 61;

/// Reads the entries of all pages.
fn read(map: &File, pages: Range<usize>, page: usize) -> io::Result<Vec<Range<usize>>> {
    let mut entries = vec![0_u8; pages.len() / page * size_of::<u64>()];
    map.read_exact_at(&mut entries, (pages.start / page * size_of::<u64>()) as u64)?;
    let (entries, _) = entries.as_chunks();
    let is_private = |entry: &[u8; 8]| {
        let entry = u64::from_le_bytes(*entry);
        entry & (ENTRY_PRESENT | ENTRY_SWAPPED) != 0 && entry & ENTRY_OF_FILE == 0
    };
    let mut found: Vec<Range<usize>> = Vec::new();
    for address in pages.step_by(page).zip(entries).filter(|(_, entry)| is_private(entry)).map(|(address, _)| address) {
        match found.last_mut().filter(|last| last.end == address) {
            Some(last) => last.end += page,
            None => found.push(address..address + page),
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use memmap2::MmapOptions;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    #[test]
    fn written_pages_are_found_in_both_ways() {
        const PAGES: usize = 300;
        let page = rustix::param::page_size();
        let file = memfd_create("paceline-test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, (PAGES * page) as u64).unwrap();
        // SAFETY: nobody else has the file.
        let mut mapping = unsafe { MmapOptions::new().len(PAGES * page).map_copy(&file) }.unwrap();
        let address = mapping.as_ptr() as usize;
        let all = address..address + PAGES * page;
        let map = File::open("/proc/self/pagemap").unwrap();
        // Pages that are only read stay those of the file.
        assert_eq!(mapping.iter().map(|&byte| u64::from(byte)).sum::<u64>(), 0);
        assert_eq!(read(&map, all.clone(), page).unwrap(), []);
        // More ranges than fit one call.
        let mut expected: Vec<Range<usize>> = Vec::new();
        for index in (0..PAGES).filter(|index| index % 3 == 0 || index % 100 < 7) {
            mapping[index * page + 5] = 1;
            let start = address + index * page;
            match expected.last_mut().filter(|last| last.end == start) {
                Some(last) => last.end += page,
                None => expected.push(start..start + page),
            }
        }
        assert_eq!(read(&map, all.clone(), page).unwrap(), expected);
        assert_eq!(find(address, PAGES * page).unwrap(), expected);
        expected.truncate(1);
        assert_eq!(find(address, 7 * page).unwrap(), expected, "pages 0 to 6");
    }
}
