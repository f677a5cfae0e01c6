//! What is asked of the kernel: to watch pages, and which of them were written to. The layouts are those of `linux/userfaultfd.h` and `linux/fs.h`.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::MmapMut;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use rustix::mm::{UserfaultfdFlags, userfaultfd};
use rustix::process::getpid;
use rustix::system::uname;

#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct Register {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    regions: u64,
    regions_len: u64,
    max_pages: u64,
    inverted: u64,
    all_of: u64,
    any_of: u64,
    returned: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

const API: Opcode = opcode::read_write::<Api>(0xaa, 0x3f);
const REGISTER: Opcode = opcode::read_write::<Register>(0xaa, 0x00);
const PAGEMAP_SCAN: Opcode = opcode::read_write::<Scan>(b'f', 16);

const UFFD_API: u64 = 0xaa;
const FEATURE_WP_UNPOPULATED: u64 = 1 << 13;
const FEATURE_WP_ASYNC: u64 = 1 << 15;
const REGISTER_MODE_WP: u64 = 1 << 1;
const SCAN_WP_MATCHING: u64 = 1 << 0;
const SCAN_CHECK_WPASYNC: u64 = 1 << 1;
const PAGE_IS_WRITTEN: u64 = 1 << 1;

/// Pieces that are asked for at once.
const REGIONS: usize = 4096;

/// The number of this process, and of the descriptor through which it has its memory watched: one for all of it, open as long as it lives. One that was
/// inherited means the memory of the parent. No lock, since one that another thread holds while somebody forks would stay so in the child.
static WATCHER: AtomicU64 = AtomicU64::new(0);

fn watcher() -> io::Result<BorrowedFd<'static>> {
    let pid = getpid().as_raw_nonzero().get() as u32;
    let known = WATCHER.load(Ordering::Acquire);
    let of_known = |known: u64| ((known >> 32) as u32 == pid).then_some(known as u32 as RawFd);
    let raw = match of_known(known) {
        Some(raw) => raw,
        None => {
            let watcher = new_watcher()?;
            let ours = u64::from(pid) << 32 | u64::from(watcher.as_raw_fd() as u32);
            match WATCHER.compare_exchange(known, ours, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => watcher.into_raw_fd(),
                // Another thread was first.
                Err(theirs) => {
                    of_known(theirs).ok_or_else(|| io::Error::other("two processes share memory"))?
                }
            }
        }
    };
    // SAFETY: what is kept was made by `new_watcher` in this process and given up by its owner, so it is open and stays open.
    Ok(unsafe { BorrowedFd::borrow_raw(raw) })
}

fn new_watcher() -> io::Result<OwnedFd> {
    // Only writes of this process are to be seen, which needs no privilege: UFFD_USER_MODE_ONLY.
    let flags =
        UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK | UserfaultfdFlags::from_bits_retain(1);
    // SAFETY: the descriptor stays in this module, which only ever registers memory for protection that the kernel takes away by itself.
    let watcher = unsafe { userfaultfd(flags)? };
    let mut api = Api { api: UFFD_API, features: FEATURE_WP_ASYNC | FEATURE_WP_UNPOPULATED, ioctls: 0 };
    // SAFETY: the kernel reads and writes an `Api`, whose layout this is.
    unsafe { ioctl(&watcher, Updater::<API, Api>::new(&mut api))? };
    Ok(watcher)
}

/// The first kernel that can be believed. Those before it, from 6.7 on, take a page that was swapped out for one that was not written to (Linux commit
/// 2c7ad9a590d1); some were mended later, but do not say so.
const SINCE: (u32, u32) = (6, 9);

fn is_sound(release: &str) -> bool {
    let mut numbers =
        release.split(|letter: char| !letter.is_ascii_digit()).map_while(|part| part.parse().ok());
    numbers.next().zip(numbers.next()).is_some_and(|version| version >= SINCE)
}

/// Has pages watched, until they are unmapped.
pub fn watch(bytes: &MmapMut) -> io::Result<()> {
    if !is_sound(&uname().release().to_string_lossy()) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let (start, len) = (bytes.as_ptr().addr() as u64, bytes.len() as u64);
    let mut register = Register { start, len, mode: REGISTER_MODE_WP, ioctls: 0 };
    // SAFETY: the kernel reads and writes a `Register`, whose layout this is. What is registered is a mapping of its own that reads and writes as before:
    // a write to a page that is protected is not reported to anybody, since the descriptor was made with WP_ASYNC.
    unsafe { ioctl(watcher()?, Updater::<REGISTER, Register>::new(&mut register))? };
    // Whether it can be scanned, too.
    scan_range(&File::open(PAGEMAP)?, start..start + len, SCAN_CHECK_WPASYNC, &mut [Region::default()])
        .map(drop)
}

/// Not of `self`, which is no process any more once the main thread has ended.
const PAGEMAP: &str = "/proc/thread-self/pagemap";

/// What a scan fails with of memory that this process does not have watched.
pub const NOT_WATCHED: i32 = rustix::io::Errno::PERM.raw_os_error();

/// Calls `each` with the pages that were written to, and protects these again; nothing falls between. If it fails, some may be protected that were not told of.
pub fn scan(bytes: &MmapMut, each: &mut dyn FnMut(Range<usize>)) -> io::Result<()> {
    let start = bytes.as_ptr().addr() as u64;
    let end = start + bytes.len() as u64;
    // Opened anew, because after a fork it would be that of another process.
    let pagemap = File::open(PAGEMAP)?;
    let mut regions = vec![Region::default(); REGIONS];
    let mut at = start;
    while at < end {
        let (found, walked) =
            scan_range(&pagemap, at..end, SCAN_WP_MATCHING | SCAN_CHECK_WPASYNC, &mut regions)?;
        for region in &regions[..found] {
            each((region.start - start) as usize..(region.end - start) as usize);
        }
        if walked <= at {
            return Err(io::Error::other("the kernel does not get on with its scan"));
        }
        at = walked;
    }
    Ok(())
}

/// Scans a part, until all regions are filled: how many are, and how far it came.
fn scan_range(
    pagemap: &File,
    range: Range<u64>,
    flags: u64,
    regions: &mut [Region],
) -> io::Result<(usize, u64)> {
    let mut scan = Scan {
        size: size_of::<Scan>() as u64,
        flags,
        start: range.start,
        end: range.end,
        walk_end: 0,
        regions: regions.as_mut_ptr().expose_provenance() as u64,
        regions_len: regions.len() as u64,
        max_pages: 0,
        // So, and not by `any_of`: what was advised away is told of only this way.
        inverted: 0,
        all_of: PAGE_IS_WRITTEN,
        any_of: 0,
        returned: PAGE_IS_WRITTEN,
    };
    // SAFETY: the kernel reads and writes a `Scan`, whose layout this is, and writes no more than `regions_len` regions, which are borrowed here. Of the
    // range it only changes the protection that a write takes away by itself.
    let found = unsafe { ioctl(pagemap, ScanCall(&mut scan))? };
    Ok((found.min(regions.len()), scan.walk_end))
}

/// `PAGEMAP_SCAN` says by its result how many regions it found.
struct ScanCall<'s>(&'s mut Scan);

// SAFETY: the opcode goes with a pointer to a `Scan`, which the kernel writes to, and the result is a count.
unsafe impl rustix::ioctl::Ioctl for ScanCall<'_> {
    type Output = usize;
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        PAGEMAP_SCAN
    }

    fn as_ptr(&mut self) -> *mut std::ffi::c_void {
        std::ptr::from_mut(self.0).cast()
    }

    unsafe fn output_from_ptr(
        found: rustix::ioctl::IoctlOutput,
        _: *mut std::ffi::c_void,
    ) -> rustix::io::Result<usize> {
        Ok(found as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_that_forget_are_not_asked() {
        for release in ["6.9.0", "6.9", "6.18.44-fc-v657", "7.0.0-rc1", "10.1"] {
            assert!(is_sound(release), "{release}");
        }
        for release in ["6.8.12-amd64", "6.7.0", "6.1.0-30-amd64", "5.15", "6", "", "linux 6.9"] {
            assert!(!is_sound(release), "{release}");
        }
    }
}
