//! Hashing reads nothing behind what it is given, where there may be no memory. An island of `unsafe`: only the kernel can say that.
#![allow(unsafe_code)]

use std::ptr::null_mut;

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use stdchk_object::Hash;
use stdchk_object::hash::Domain;

const PAGE: usize = 4096;
const PAGES: usize = 16;

/// Pages with nothing behind them.
struct Guarded(*mut u8);

impl Guarded {
    fn new() -> Guarded {
        let len = (PAGES + 1) * PAGE;
        // SAFETY: new memory is mapped where there is none, and its last page is given no rights.
        let memory = unsafe {
            let memory =
                mmap_anonymous(null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
            let memory = memory.expect("memory").cast::<u8>();
            mprotect(memory.add(PAGES * PAGE).cast(), PAGE, MprotectFlags::empty()).expect("a guard");
            memory
        };
        Guarded(memory)
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: so many bytes are mapped to be read and written, are zeros at first, and belong to this one until it is dropped.
        unsafe { std::slice::from_raw_parts_mut(self.0, PAGES * PAGE) }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: that is what was mapped, and nobody has it any more.
        unsafe { munmap(self.0.cast(), (PAGES + 1) * PAGE).expect("it was mapped") }
    }
}

/// Whichever of a group of pieces is the last one in memory, and however many there are.
#[test]
fn nothing_is_read_behind_the_last_byte() {
    let mut guarded = Guarded::new();
    let bytes = guarded.bytes();
    bytes.iter_mut().enumerate().for_each(|(i, byte)| *byte = (i.wrapping_mul(i) >> 7) as u8);
    for len in [1024, 2048, PAGE] {
        for count in 1..=PAGES {
            let end = &bytes[PAGES * PAGE - count * len..];
            let mut pieces: Vec<&[u8]> = end.chunks(len).collect();
            for _ in 0..count {
                pieces.rotate_left(1);
                let mut hashes: Vec<Hash> = Vec::new();
                Domain::Data.hash_each(pieces.iter().copied(), |hash| hashes.push(hash));
                let one_by_one: Vec<Hash> = pieces.iter().map(|piece| Domain::Data.hash(piece)).collect();
                assert_eq!(hashes, one_by_one, "{count} pieces of {len}");
            }
        }
    }
}
