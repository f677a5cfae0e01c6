//! Memory of which the kernel tells where it was written to (docs/CAPTURE.md).
#![deny(unsafe_code)]

mod kernel;

use std::io;
use std::ops::{Deref, DerefMut, Range};

use memmap2::MmapMut;

/// Bytes at the beginning of a page, zeros at first, that the kernel watches where it can.
#[derive(Debug)]
pub struct Memory {
    bytes: MmapMut,
    len: usize,
    is_watched: bool,
}

impl Memory {
    /// So many zeros. Pages are found when they are first written to.
    pub fn zeroed(len: usize) -> io::Result<Memory> {
        let too_much = || io::Error::from(io::ErrorKind::OutOfMemory);
        let whole_pages = len.max(1).checked_next_multiple_of(page_bytes()).ok_or_else(too_much)?;
        let bytes = MmapMut::map_anon(whole_pages)?;
        let mut memory = Memory { bytes, len, is_watched: false };
        memory.watch();
        Ok(memory)
    }

    /// Whether the kernel watched it when it was made, or asked last. If not, all of it always counts as written to.
    pub fn is_watched(&self) -> bool {
        self.is_watched
    }

    /// Calls `each` with the pages that were written to since this was called last, or ever, in order; and begins anew. Where that cannot be said it is all
    /// of them.
    pub fn written(&mut self, each: &mut dyn FnMut(Range<usize>)) {
        if self.is_watched {
            match kernel::scan(&self.bytes, each) {
                Ok(()) => return,
                // The copy of a child, which nobody has watched so far.
                Err(error) if error.raw_os_error() == Some(kernel::NOT_WATCHED) => self.watch(),
                Err(error) => tracing::debug!("it is not known what was written to memory: {error}"),
            }
        }
        each(0..self.bytes.len());
    }

    fn watch(&mut self) {
        let watched = kernel::watch(&self.bytes);
        if let Err(error) = &watched {
            tracing::debug!("memory is not watched: {error}");
        }
        self.is_watched = watched.is_ok();
    }
}

/// Bytes of a page.
pub fn page_bytes() -> usize {
    rustix::param::page_size()
}

impl Deref for Memory {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    fn written(memory: &mut Memory) -> Vec<Range<usize>> {
        let page = page_bytes();
        let mut all: Vec<Range<usize>> = Vec::new();
        memory.written(&mut |range| match all.last_mut() {
            // How they are divided is the kernel's matter.
            Some(last) if last.end == range.start / page => last.end = range.end / page,
            _ => all.push(range.start / page..range.end / page),
        });
        all
    }

    /// Memory of so many pages, if the kernel watches any.
    fn watched(pages: usize) -> Option<Memory> {
        let memory = Memory::zeroed(pages * page_bytes()).expect("a little memory");
        if !memory.is_watched() {
            eprintln!("skipped: this kernel does not watch memory");
        }
        memory.is_watched().then_some(memory)
    }

    #[test]
    fn what_was_written_is_told_once() {
        let Some(mut memory) = watched(10_000) else { return };
        let page = page_bytes();
        assert_eq!(written(&mut memory), [Range { start: 0, end: 10_000 }], "everything, at first");
        assert_eq!(written(&mut memory), []);
        memory[3 * page] = 1;
        memory[5 * page - 1] = 1;
        memory[9_999 * page..].fill(2);
        assert_eq!(written(&mut memory), [3..5, 9_999..10_000]);
        assert_eq!(written(&mut memory), []);
        // What is only read is not written to.
        assert_eq!(memory.iter().map(|&byte| usize::from(byte)).sum::<usize>(), 2 + 2 * page);
        assert_eq!(written(&mut memory), []);
        // Nor is it ever missed that the kernel writes.
        let mut zeros = std::fs::File::open("/dev/zero").expect("a system");
        zeros.read_exact(&mut memory[7 * page + 5..9 * page]).expect("zeros");
        assert_eq!(written(&mut memory), [Range { start: 7, end: 9 }]);
    }

    #[test]
    fn more_pieces_than_are_asked_for_at_once() {
        let Some(mut memory) = watched(20_000) else { return };
        written(&mut memory);
        let odd: Vec<usize> = (0..20_000).filter(|page| page % 2 == 1).collect();
        odd.iter().for_each(|at| memory[at * page_bytes()] = 7);
        let found = written(&mut memory);
        assert!(found == odd.iter().map(|&at| at..at + 1).collect::<Vec<_>>(), "{} pieces", found.len());
        assert_eq!(written(&mut memory), []);
    }

    #[test]
    fn many_are_watched_each_for_itself() {
        let Some(mut first) = watched(2) else { return };
        let mut others: Vec<Memory> = (0..2000).filter_map(|_| watched(1)).collect();
        assert_eq!(others.len(), 2000, "they take no descriptor each");
        written(&mut first);
        others.iter_mut().for_each(|other| drop(written(other)));
        others[1000][5] = 1;
        assert_eq!(written(&mut first), []);
        let changed: Vec<usize> = (0..2000).filter(|&at| !written(&mut others[at]).is_empty()).collect();
        assert_eq!(changed, [1000]);
    }

    #[test]
    fn threads_write_while_others_do() {
        let Some(mut memory) = watched(4000) else { return };
        written(&mut memory);
        let page = page_bytes();
        std::thread::scope(|scope| {
            for part in memory.chunks_mut(1000 * page) {
                scope.spawn(|| part.chunks_mut(4 * page).for_each(|some| some[page] = 1));
            }
        });
        let expected: Vec<Range<usize>> = (0..1000).map(|at| 4 * at + 1..4 * at + 2).collect();
        assert!(written(&mut memory) == expected);
    }

    #[test]
    fn any_length_has_whole_pages() {
        for len in [0, 1, page_bytes() + 1] {
            let mut memory = Memory::zeroed(len).expect("a little memory");
            assert_eq!((memory.len(), memory.as_ptr().addr() % page_bytes()), (len, 0));
            memory.fill(1);
            let mut end = 0;
            memory.written(&mut |range| end = range.end);
            assert_eq!(end, len.max(1).next_multiple_of(page_bytes()));
        }
        assert!(Memory::zeroed(usize::MAX).is_err());
    }
}
