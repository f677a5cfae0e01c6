//! A fixed number of buffers: whoever wants one waits until there is one. This is what bounds the pipeline.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use memmap2::{MmapMut, MmapOptions};

use crate::vault::locked;

/// The buffers.
#[derive(Clone)]
pub struct Buffers(Arc<Supply>);

struct Supply {
    /// The one given back last is taken first: most of it is still in the processor's cache.
    free: Mutex<Vec<Memory>>,
    given_back: Condvar,
    /// What a buffer usually needs at most.
    size: usize,
    /// What all of them need.
    total: usize,
    spares: Spares,
}

impl Supply {
    /// So much memory, or a little more.
    fn piece(&self, len: usize) -> Memory {
        let spare = locked(&self.spares.0.spare).take(len);
        spare.unwrap_or_else(|| Memory::of(len.next_multiple_of(LOOSE_STEP)))
    }
}

/// Memory of loose buffers that are gone, to be used again by this supply and others: memory that was never touched is slow to get, and
/// while some thread gets it others wait for their mappings.
#[derive(Clone, Default)]
pub struct Spares(Arc<Shared>);

#[derive(Default)]
struct Shared {
    spare: Mutex<Spare>,
    /// What the last loose buffer needed.
    last: AtomicUsize,
}

/// Memory that is not in use, the oldest first.
#[derive(Default)]
struct Spare {
    pieces: VecDeque<Memory>,
    bytes: usize,
}

/// Whether so many bytes have room in a piece that is not much larger.
fn fits(piece: &Memory, len: usize) -> bool {
    (len..=len * 2).contains(&piece.len())
}

/// Pieces of memory that are kept: more than two packs are made of.
const SPARE_PIECES: usize = 128;
/// Their bytes are no more than this part of those of the supply.
const SPARE_PART: usize = 4;

impl Spare {
    /// Memory for so many bytes that is not much larger, if there is such a piece.
    fn take(&mut self, len: usize) -> Option<Memory> {
        let piece =
            self.pieces.iter().rposition(|piece| fits(piece, len)).and_then(|at| self.pieces.remove(at))?;
        self.bytes -= piece.len();
        Some(piece)
    }

    /// Keeps a piece, rather than the oldest ones.
    fn keep(&mut self, piece: Memory, most: usize) {
        if piece.len() == 0 || piece.len() > most {
            return;
        }
        self.bytes += piece.len();
        self.pieces.push_back(piece);
        while (self.bytes > most || self.pieces.len() > SPARE_PIECES)
            && let Some(oldest) = self.pieces.pop_front()
        {
            self.bytes -= oldest.len();
        }
    }
}

/// A buffer of which no more is needed is not worth a mapping.
const SMALL: usize = 256 << 10;
/// Loose buffers are of a multiple of so many bytes, so that others fit into their memory later.
const LOOSE_STEP: usize = 64 << 10;

/// Memory of a buffer. Large ones are mapped all at once: getting their pages one by one, as they are touched, takes several
/// times as long, above all on a virtual machine.
enum Memory {
    Small(Vec<u8>),
    Mapped(MmapMut),
}

impl Default for Memory {
    fn default() -> Memory {
        Memory::Small(Vec::new())
    }
}

impl Memory {
    /// So many bytes, zeros.
    fn of(len: usize) -> Memory {
        let mut memory = Memory::default();
        memory.grow(len, len);
        memory
    }

    fn len(&self) -> usize {
        self.bytes().len()
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Memory::Small(bytes) => bytes,
            Memory::Mapped(bytes) => bytes,
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Memory::Small(bytes) => bytes,
            Memory::Mapped(bytes) => bytes,
        }
    }

    /// Makes it at least so long; what is in it stays.
    fn grow(&mut self, len: usize, usual: usize) {
        if self.len() >= len {
            return;
        }
        let wanted = len.next_power_of_two().min(usual.max(len));
        let mapped = (len > SMALL).then(|| MmapOptions::new().len(wanted).populate().map_anon());
        match (mapped, &mut *self) {
            (Some(Ok(mut mapped)), _) => {
                mapped[..self.len()].copy_from_slice(self.bytes());
                *self = Memory::Mapped(mapped);
            }
            (_, Memory::Small(bytes)) => bytes.resize(wanted, 0),
            (_, Memory::Mapped(bytes)) => {
                let mut longer = bytes.to_vec();
                longer.resize(len, 0);
                *self = Memory::Small(longer);
            }
        }
    }
}

impl Buffers {
    /// `count` buffers of about `size` bytes; their memory is taken when they are first used.
    pub fn new(count: usize, size: usize) -> Buffers {
        Buffers::with_spares(count, size, Spares::default())
    }

    /// The same, where memory of loose buffers is that of others before, and of others later.
    pub fn with_spares(count: usize, size: usize, spares: Spares) -> Buffers {
        let free = Mutex::new((0..count).map(|_| Memory::default()).collect());
        let (given_back, total) = (Condvar::new(), count * size);
        Buffers(Arc::new(Supply { free, given_back, size, total, spares }))
    }

    /// A buffer without bytes; waits for one to be given back.
    pub fn take(&self) -> Buffer {
        let mut free = locked(&self.0.free);
        let memory = loop {
            match free.pop() {
                Some(memory) => break memory,
                None => free = self.0.given_back.wait(free).unwrap_or_else(|poisoned| poisoned.into_inner()),
            }
        };
        Buffer { memory, len: 0, loose: false, supply: self.0.clone() }
    }
}

/// A buffer that returns when it is dropped.
pub struct Buffer {
    memory: Memory,
    len: usize,
    loose: bool,
    supply: Arc<Supply>,
}

impl Buffer {
    /// Gets memory for what a buffer usually needs, if that will be added bit by bit.
    pub fn reserve(&mut self) {
        self.memory.grow(self.supply.size, self.supply.size);
    }

    /// Makes it so long, with whatever is in it.
    pub fn set_len(&mut self, len: usize) {
        self.memory.grow(len, self.supply.size);
        self.len = len;
    }

    /// Adds bytes at its end. The first ones get as much memory as the last buffer needed that was made loose: this one may be made so, too.
    pub fn append(&mut self, bytes: &[u8]) {
        let start = self.len;
        if self.memory.len() == 0 {
            let room = self.supply.spares.0.last.load(Ordering::Relaxed);
            self.memory = self.supply.piece(room + room / 8);
        }
        self.set_len(start + bytes.len());
        self.memory.bytes_mut()[start..self.len].copy_from_slice(bytes);
    }

    /// The same bytes, and room for few more, in a loose buffer: one that nobody waits for. Memory that is not much larger goes along with them; the supply has
    /// as many buffers as before, and gets memory for this one when it is needed.
    pub fn loosen(mut self) -> Buffer {
        let room = self.len.next_multiple_of(LOOSE_STEP);
        self.supply.spares.0.last.store(room, Ordering::Relaxed);
        let memory = match fits(&self.memory, self.len) {
            true => std::mem::take(&mut self.memory),
            false => {
                let mut memory = self.supply.piece(room);
                memory.bytes_mut()[..self.len].copy_from_slice(&self);
                memory
            }
        };
        Buffer { memory, len: self.len, loose: true, supply: self.supply.clone() }
    }

    /// Whether nobody waits for it.
    pub fn is_loose(&self) -> bool {
        self.loose
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.memory.bytes()[..self.len]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory.bytes_mut()[..self.len]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let memory = std::mem::take(&mut self.memory);
        if self.loose {
            return locked(&self.supply.spares.0.spare).keep(memory, self.supply.total / SPARE_PART);
        }
        locked(&self.supply.free).push(memory);
        self.supply.given_back.notify_one();
    }
}

/// Bytes that several owners read: a part of a shared buffer, or a vector of their own.
pub enum Bytes {
    /// A range of a buffer.
    Shared(Arc<Buffer>, std::ops::Range<usize>),
    /// Gathered from several places.
    Own(Vec<u8>),
}

impl Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Shared(buffer, range) => &buffer[range.clone()],
            Bytes::Own(bytes) => bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is made loose keeps its bytes, and its memory goes along where that is not much larger; the supply has as many buffers as before.
    #[test]
    fn what_is_made_loose_takes_its_memory_along() {
        let buffers = Buffers::new(1, 4 << 20);
        let filled = |buffers: &Buffers, byte: u8, pages: usize| {
            let mut buffer = buffers.take();
            buffer.set_len(0);
            (0..pages).for_each(|_| buffer.append(&[byte; 4096]));
            buffer
        };
        // The second is begun with as much memory as the first turned out to need, and the third in that of the first.
        let first = filled(&buffers, 1, 100).loosen();
        let second = filled(&buffers, 2, 100);
        let (place, room) = (second.as_ptr(), second.memory.len());
        assert!((100 * 4096..=200 * 4096).contains(&room), "{room}");
        let second = second.loosen();
        assert!(second.as_ptr() == place && second.is_loose());
        assert!(first.iter().all(|&byte| byte == 1) && second.iter().all(|&byte| byte == 2));
        drop(second);
        assert_eq!(filled(&buffers, 3, 100).as_ptr(), place);
        // Little is copied out of much.
        let few = filled(&buffers, 4, 10);
        let room = few.memory.len();
        let few = few.loosen();
        assert!(few.memory.len() < room && few.len() == 10 * 4096 && few.iter().all(|&byte| byte == 4));
        assert!(first.iter().all(|&byte| byte == 1));
    }

    /// Memory of one supply's loose buffers goes to another one that has the same spares, also when the first is gone.
    #[test]
    fn spares_outlive_their_supply() {
        let spares = Spares::default();
        let loose = |buffers: &Buffers| {
            let mut buffer = buffers.take();
            buffer.append(&[7; 400 << 10]);
            buffer.loosen()
        };
        let first = loose(&Buffers::with_spares(1, 4 << 20, spares.clone()));
        let place = first.as_ptr();
        drop(first);
        let buffers = Buffers::with_spares(1, 4 << 20, spares);
        assert_eq!(loose(&buffers).as_ptr(), place);
        assert_ne!(loose(&Buffers::new(1, 4 << 20)).as_ptr(), place, "others have their own");
    }
}
