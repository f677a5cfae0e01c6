//! Bringing blobs back: leaves in parallel, each read, verified and handed on.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use stdchk_object::tree::{Blob, Leaf, Piece};
use stdchk_object::{Error, Kind, Result};

use crate::buffers::{Buffer, Buffers};
use crate::vault::{LeafAt, Roots, Scratch, Vault, locked};
use crate::workers::{Answer, Workers};

/// Takes the bytes of a blob, in any order and from several threads at once. What is never written is zeros.
pub trait Sink: Send + Sync {
    /// Takes bytes at an offset.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()>;
}

/// Leaves that may be under way at once, for each worker.
const AHEAD: usize = 2;
/// Bytes that are read, checked and written together.
const SLICE_BYTES: usize = 512 << 10;
/// Leaves that may be under way at once take no more of the budget than this part of it.
const MEMORY_PART: usize = 4;

/// Bytes of a blob that lie one after the other.
#[derive(Clone, Copy, Debug)]
pub enum Stretch<'a> {
    /// These.
    Data(&'a [u8]),
    /// So many zeros.
    Zeros(u64),
}

/// A blob and what is needed to read it.
pub struct Reader<'a> {
    /// Where it lies.
    pub vault: &'a Arc<Vault>,
    /// What its part refers to.
    pub roots: &'a Arc<Roots>,
    /// The blob.
    pub blob: &'a Blob,
    /// Who reads it.
    pub workers: &'a Workers,
    /// The budget in bytes.
    pub memory: usize,
}

impl Reader<'_> {
    /// Reads the blob into `sink`. `progress` is told of bytes that are done.
    pub fn restore(&self, sink: &Arc<dyn Sink>, progress: &dyn Fn(u64)) -> Result<()> {
        // Of those of a worker one is filled while another waits to be written. Where chunks are long, a slice may be a whole leaf.
        let fitting = self.memory / MEMORY_PART / self.blob.leaf_bytes() as usize;
        let buffers = Buffers::new((2 * self.workers.count() + 1).min(fitting).max(1), SLICE_BYTES);
        let turns = Turns { sink: sink.clone(), state: Mutex::default() };
        let job = move |at: &LeafHere, scratch: &mut Scratch| {
            let slices = at.vault.slices(&at.roots, &at.leaf, SLICE_BYTES)?;
            at.vault.will_read(&slices);
            slices.iter().try_for_each(|slice| {
                let mut buffer = buffers.take();
                buffer.set_len(slice.len);
                at.vault.read_slice(slice, &mut buffer, scratch)?;
                turns.write(at.start + slice.start as u64, buffer)
            })
        };
        self.leaves(false, job, &mut |_, len| {
            progress(len);
            Ok(())
        })
    }

    /// Calls `each` with the blob's bytes, in order; with the first of them as soon as they are there.
    pub fn stream(&self, each: &mut dyn FnMut(Stretch) -> Result<()>) -> Result<()> {
        let buffers = Buffers::new(self.ahead(), self.blob.leaf_bytes() as usize);
        let job = move |at: &LeafHere, scratch: &mut Scratch| {
            let mut buffer = buffers.take();
            buffer.set_len(at.leaf.bytes() as usize);
            at.vault.read_leaf(&at.roots, &at.leaf, &mut buffer, scratch)?;
            let mut start = 0;
            for piece in &at.leaf.pieces {
                let end = start + piece.bytes() as usize;
                if matches!(piece, Piece::Hole(_)) {
                    buffer[start..end].fill(0);
                }
                start = end;
            }
            Ok(buffer)
        };
        self.leaves(true, job, &mut |leaf, len| match leaf {
            Read::ByWorker(buffer) => each(Stretch::Data(&buffer)),
            Read::NotYet(at) => at.stream(each),
            Read::Hole => each(Stretch::Zeros(len)),
        })
    }

    /// Leaves that may be under way at once.
    fn ahead(&self) -> usize {
        let fitting = self.memory / MEMORY_PART / self.blob.leaf_bytes() as usize;
        (self.workers.count() * AHEAD).min(fitting).max(1)
    }

    /// Visits all leaves; the workers do `job` with each, but where `first_here` is said not with the first, since whoever waits for it should not wait for
    /// all of it. `done` gets the results in the order of the blob with how many bytes each stands for.
    fn leaves<T: Send + 'static>(
        &self,
        first_here: bool,
        job: impl Fn(&LeafHere, &mut Scratch) -> Result<T> + Send + Sync + 'static,
        done: &mut dyn FnMut(Read<T>, u64) -> Result<()>,
    ) -> Result<()> {
        let read = |answer: Option<Answer<T>>| {
            answer.map_or(Ok(Read::Hole), |answer| answer.wait().map(Read::ByWorker))
        };
        let limit = self.ahead();
        let scratches = Arc::new(Mutex::new(Vec::<Scratch>::new()));
        let job = Arc::new(job);
        let mut under_way: VecDeque<(Option<Answer<T>>, u64)> = VecDeque::new();
        let walked = self.vault.walk(self.roots, self.blob, 0..self.blob.len, &mut |start, at, len| {
            if under_way.len() >= limit
                && let Some((answer, len)) = under_way.pop_front()
            {
                done(read(answer)?, len)?;
            }
            if start == 0 && first_here && at != LeafAt::Hole {
                let leaf = self.vault.leaf(self.roots, self.blob, &at, len)?;
                let (vault, roots) = (self.vault.clone(), self.roots.clone());
                return done(Read::NotYet(&LeafHere { vault, roots, leaf, start }), len);
            }
            let answer = (at != LeafAt::Hole).then(|| {
                let (vault, roots, blob) = (self.vault.clone(), self.roots.clone(), self.blob.clone());
                let (job, scratches) = (job.clone(), scratches.clone());
                self.workers.ask(move |_| {
                    let leaf = vault.leaf(&roots, &blob, &at, len)?;
                    let mut scratch = locked(&scratches).pop().unwrap_or_default();
                    let done = job(&LeafHere { vault, roots, leaf, start }, &mut scratch);
                    locked(&scratches).push(scratch);
                    done
                })
            });
            under_way.push_back((answer, len));
            Ok(())
        });
        // Whatever happened, nothing is left running that still writes into a sink.
        let mut result = walked;
        for (answer, len) in under_way {
            let leaf = read(answer);
            result = result.and(leaf).and_then(|leaf| done(leaf, len));
        }
        result
    }
}

/// Writes into a sink, one at a time: the kernel lets nobody else write to the same file meanwhile, and who waits for it burns a
/// processor. So who finds another one writing leaves what it has to that one.
struct Turns {
    sink: Arc<dyn Sink>,
    state: Mutex<Turn>,
}

#[derive(Default)]
struct Turn {
    waiting: VecDeque<(u64, Buffer)>,
    somebody_writes: bool,
}

impl Turns {
    /// Writes these bytes, or has them written before the one who writes now returns. An error is told to the one who met it.
    fn write(&self, offset: u64, buffer: Buffer) -> Result<()> {
        let mut state = locked(&self.state);
        state.waiting.push_back((offset, buffer));
        if state.somebody_writes {
            return Ok(());
        }
        state.somebody_writes = true;
        let mut done = Ok(());
        while let Some((offset, buffer)) = state.waiting.pop_front() {
            drop(state);
            // After an error nothing is written any more, but buffers must come free.
            if done.is_ok() {
                done = self.write_now(offset, &buffer);
            }
            drop(buffer);
            state = locked(&self.state);
        }
        state.somebody_writes = false;
        done
    }

    /// A panic of the sink must not leave others waiting for buffers for ever.
    fn write_now(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let written = catch_unwind(AssertUnwindSafe(|| self.sink.write_at(offset, bytes)));
        written.unwrap_or_else(|_| Err(Error::new(Kind::Io, "what takes the bytes panicked")))
    }
}

/// What became of a leaf.
enum Read<'l, T> {
    /// A worker has done what it was to do.
    ByWorker(T),
    /// It is to be read here and now.
    NotYet(&'l LeafHere),
    /// There is nothing to read.
    Hole,
}

impl LeafHere {
    /// Hands its bytes on, a slice at a time.
    fn stream(&self, each: &mut dyn FnMut(Stretch) -> Result<()>) -> Result<()> {
        let (mut scratch, mut buffer, mut at) = (Scratch::default(), Vec::new(), 0);
        let zeros = |from: usize, to: usize, each: &mut dyn FnMut(Stretch) -> Result<()>| match to - from {
            0 => Ok(()),
            len => each(Stretch::Zeros(len as u64)),
        };
        let slices = self.vault.slices(&self.roots, &self.leaf, SLICE_BYTES)?;
        self.vault.will_read(&slices);
        for slice in slices {
            zeros(at, slice.start, each)?;
            at = slice.start + slice.len;
            buffer.resize(slice.len, 0);
            self.vault.read_slice(&slice, &mut buffer, &mut scratch)?;
            each(Stretch::Data(&buffer))?;
        }
        zeros(at, self.leaf.bytes() as usize, each)
    }
}

/// A leaf that a worker has before it.
struct LeafHere {
    vault: Arc<Vault>,
    roots: Arc<Roots>,
    leaf: Leaf,
    /// Where it begins in the blob.
    start: u64,
}
