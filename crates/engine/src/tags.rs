//! Files of tags: those of one member each, named after its blob, and never more than a help.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, Read, Write};
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use stdchk_object::hash::plain;
use stdchk_object::tree::Blob;
use stdchk_object::wire::Writer;
use stdchk_tag::{SECRET_BYTES, Tag, Tagger};

use crate::session::random_u64;

const MAGIC: &[u8; 8] = b"stdchkT3";
/// A place in a leaf, a length, and a tag.
const RECORD_BYTES: usize = 4 + 2 + 16;
/// What is said of a leaf: how many records it has, and their seal.
const LEAF_BYTES: usize = 4 + SEAL_BYTES;
const SEAL_BYTES: usize = 16;
/// The seal of all that, how many leaves there are, and the magic.
const END_BYTES: usize = SEAL_BYTES + 16;
/// Fewer are not worth a file.
pub const RECORDS_MIN: usize = 3276;
/// More leaves than that, most of them holes perhaps, would take too much memory; and so would more chunks in one of them.
const LEAVES_MAX: u64 = 1 << 20;
const RECORDS_MAX: u32 = 1 << 20;
/// What nobody has written for so long is of no use any more; and what was begun, and has no name yet.
const LASTING: Duration = Duration::from_secs(30 * 24 * 3600);
const BEGUN: Duration = Duration::from_secs(24 * 3600);
const BEGUN_SUFFIX: &str = ".new";

/// The tags of one user on one machine.
pub struct TagCache {
    folder: PathBuf,
    tagger: Tagger,
    sealer: Sealer,
    is_tidy: AtomicBool,
}

/// Tells what was written from what a crash, or a disk, has made of it: a tag that lies at another place than it should may well be right there.
#[derive(Clone, Copy)]
struct Sealer([u8; SECRET_BYTES]);

impl Sealer {
    fn seal(&self, of: &[u8], bytes: &[u8]) -> [u8; SEAL_BYTES] {
        let length = (of.len() as u64).to_le_bytes();
        plain(&[&b"stdchk v1 seal"[..], &self.0, &length, of, bytes].concat()).half()
    }

    fn of_leaf(&self, number: u64, records: &[u8]) -> [u8; SEAL_BYTES] {
        self.seal(&number.to_le_bytes(), records)
    }
}

impl TagCache {
    /// Those in a directory, which is made if there is none. It must be the user's own.
    pub fn open(directory: &Path) -> io::Result<TagCache> {
        let folder = directory.join("tags");
        DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        check_is_ours(directory)?;
        check_is_ours(&folder)?;
        let secret = secret_in(directory)?;
        let tagger = Tagger::new(&secret);
        let tagger = tagger.ok_or_else(|| io::Error::new(ErrorKind::Unsupported, "no such instructions"))?;
        Ok(TagCache { folder, tagger, sealer: Sealer(secret), is_tidy: AtomicBool::new(false) })
    }

    /// What makes the tags.
    pub fn tagger(&self) -> &Tagger {
        &self.tagger
    }

    /// The tags of a blob, if there are any.
    pub fn find(&self, blob: &Blob) -> Option<Tags> {
        let tags = Tags::open(&self.folder.join(name_of(blob)), blob, self.sealer);
        tags.inspect_err(|error| tracing::debug!("no tags: {error}")).ok()
    }

    /// Begins to write those of another blob, which takes the place of its parent.
    pub fn begin(self: Arc<Self>, leaf_shift: u8, parent: Option<&Blob>) -> TagWriter {
        let replaced = parent.map(|parent| self.folder.join(name_of(parent)));
        let (leaves, records, first) = (Vec::new(), Vec::new(), Vec::new());
        TagWriter { cache: self, replaced, leaf_shift, leaves, records, first, file: None, is_lost: false }
    }

    /// Removes what is too old, once for each process. What else may lie there is not touched.
    fn tidy(&self) -> io::Result<()> {
        if self.is_tidy.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        for entry in fs::read_dir(&self.folder)?.flatten() {
            let Some(lasts) = entry.file_name().to_str().and_then(lasting) else { continue };
            let written = entry.metadata().and_then(|meta| meta.modified());
            let age = written.ok().and_then(|written| SystemTime::now().duration_since(written).ok());
            if age.is_some_and(|age| age > lasts) {
                let _ = fs::remove_file(entry.path());
            }
        }
        Ok(())
    }
}

/// How long a file of ours is kept.
fn lasting(name: &str) -> Option<Duration> {
    let (digits, lasts) = match name.strip_suffix(BEGUN_SUFFIX) {
        Some(begun) => (begun, BEGUN),
        None => (name, LASTING),
    };
    let wanted = if lasts == BEGUN { 16 } else { 32 };
    (digits.len() == wanted && digits.bytes().all(|digit| digit.is_ascii_hexdigit())).then_some(lasts)
}

fn name_of(blob: &Blob) -> String {
    let mut writer = Writer::new();
    blob.encode(&mut writer);
    format!("{:032x}", u128::from_be_bytes(plain(&writer.into_bytes()).half()))
}

/// How many leaves a blob has, unless they are too many.
fn leaves_of(blob: &Blob) -> Option<u64> {
    Some(blob.len.div_ceil(blob.leaf_bytes())).filter(|&leaves| leaves <= LEAVES_MAX)
}

/// Whoever else could write there could have a save take what changed for what did not.
fn check_is_ours(directory: &Path) -> io::Result<()> {
    let meta = fs::metadata(directory)?;
    if meta.uid() == fs::metadata("/proc/self")?.uid() && meta.mode() & 0o022 == 0 {
        return Ok(());
    }
    let text = format!("{} is not only this user's to write", directory.display());
    Err(io::Error::new(ErrorKind::PermissionDenied, text))
}

/// A file that is written aside, and removed unless it gets its name.
struct Aside {
    path: PathBuf,
    file: BufWriter<File>,
}

impl Aside {
    fn create(folder: &Path) -> io::Result<Aside> {
        let random = random_u64().map_err(io::Error::other)?;
        let path = folder.join(format!("{random:016x}{BEGUN_SUFFIX}"));
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        Ok(Aside { path, file: BufWriter::with_capacity(256 << 10, file) })
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// The secret of a directory, made if there is none. One that is cut off, or zeros, as a crash may leave it, is none.
fn secret_in(directory: &Path) -> io::Result<[u8; SECRET_BYTES]> {
    let path = directory.join("secret");
    let found = read_secret(&path)?;
    if let Some(Some(secret)) = found {
        return Ok(secret);
    }
    let mut aside = Aside::create(directory)?;
    for _ in 0..SECRET_BYTES / 8 {
        aside.file.write_all(&random_u64().map_err(io::Error::other)?.to_le_bytes())?;
    }
    aside.file.flush()?;
    aside.file.get_ref().sync_all()?;
    let placed = match found {
        Some(_) => fs::rename(&aside.path, &path),
        None => fs::hard_link(&aside.path, &path),
    };
    match placed {
        // Another one may have been faster: there is one secret only.
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        _ => read_secret(&path)?.flatten().ok_or_else(|| io::Error::other("the secret has gone")),
    }
}

/// What lies there, if anything does: a secret, or none.
fn read_secret(path: &Path) -> io::Result<Option<Option<[u8; SECRET_BYTES]>>> {
    let mut secret = [0; SECRET_BYTES];
    match File::open(path).and_then(|mut file| file.read_exact(&mut secret)) {
        Ok(()) => Ok(Some(Some(secret).filter(|secret| *secret != [0; SECRET_BYTES]))),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(Some(None)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Bytes of a blob, and their tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tagged {
    /// Where they begin.
    pub at: u64,
    /// How many they are.
    pub len: u32,
    /// Their tag.
    pub tag: Tag,
}

impl Tagged {
    /// Where they end.
    pub fn end(&self) -> u64 {
        self.at + u64::from(self.len)
    }
}

/// The tags of a blob.
pub struct Tags {
    file: File,
    leaf_shift: u8,
    sealer: Sealer,
    leaves: Vec<LeafTags>,
}

/// Where those of a leaf lie.
struct LeafTags {
    /// Records before them.
    before: u64,
    count: u32,
    seal: [u8; SEAL_BYTES],
}

impl Tags {
    fn open(path: &Path, blob: &Blob, sealer: Sealer) -> io::Result<Tags> {
        let file = File::open(path)?;
        let len = file.metadata()?.len();
        let wrong = || io::Error::new(ErrorKind::InvalidData, "not a file of tags");
        let leaves = leaves_of(blob).ok_or_else(wrong)?;
        let tail_bytes = leaves as usize * LEAF_BYTES + END_BYTES;
        let tail_at = len.checked_sub(tail_bytes as u64).ok_or_else(wrong)?;
        let mut tail = vec![0; tail_bytes];
        file.read_exact_at(&mut tail, tail_at)?;
        let (said, end) = tail.split_at(tail_bytes - END_BYTES);
        if end != end_of(sealer, blob, leaves, said) {
            return Err(wrong());
        }
        let mut before = 0;
        let mut leaf = |said: &[u8; LEAF_BYTES]| {
            let (count, seal) = said.split_first_chunk::<4>().expect("20 bytes");
            let count = u32::from_le_bytes(*count);
            let leaf = LeafTags { before, count, seal: seal.try_into().expect("16 bytes") };
            before += u64::from(count);
            leaf
        };
        let leaves: Vec<LeafTags> = said.as_chunks().0.iter().map(&mut leaf).collect();
        let is_whole = before.checked_mul(RECORD_BYTES as u64) == Some(tail_at);
        if !is_whole || leaves.iter().any(|leaf| leaf.count > RECORDS_MAX) {
            return Err(wrong());
        }
        Ok(Tags { file, leaf_shift: blob.leaf_shift, sealer, leaves })
    }

    /// The tags of what lies in a range of the blob, in the order of their places.
    pub fn within(&self, range: Range<u64>) -> Vec<Tagged> {
        let read = self.read(range.start >> self.leaf_shift, range.end.saturating_sub(1) >> self.leaf_shift);
        let mut tags = read.unwrap_or_else(|error| {
            tracing::debug!("tags cannot be read: {error}");
            Vec::new()
        });
        tags.retain(|tagged| range.start <= tagged.at && tagged.end() <= range.end);
        tags
    }

    /// Those of leaves from `first` to `last`.
    fn read(&self, first: u64, last: u64) -> io::Result<Vec<Tagged>> {
        let mut tags = Vec::new();
        for number in first..=last {
            let Some(leaf) = usize::try_from(number).ok().and_then(|leaf| self.leaves.get(leaf)) else {
                break;
            };
            let mut bytes = vec![0; leaf.count as usize * RECORD_BYTES];
            self.file.read_exact_at(&mut bytes, leaf.before * RECORD_BYTES as u64)?;
            if self.sealer.of_leaf(number, &bytes) != leaf.seal {
                return Err(io::Error::new(ErrorKind::InvalidData, "tags are not what was written"));
            }
            for record in bytes.as_chunks::<RECORD_BYTES>().0 {
                let (at, rest) = record.split_first_chunk::<4>().expect("22 bytes");
                let (len, tag) = rest.split_first_chunk::<2>().expect("18 bytes");
                let at = (number << self.leaf_shift) + u64::from(u32::from_le_bytes(*at));
                let len = u32::from(u16::from_le_bytes(*len));
                let tag = Tag::from_bytes(tag.try_into().expect("16 bytes"));
                tags.extend(tag.map(|tag| Tagged { at, len, tag }));
            }
        }
        Ok(tags)
    }
}

/// How a file of tags ends: a seal over what is said of its leaves, for this blob only.
fn end_of(sealer: Sealer, blob: &Blob, leaves: u64, said: &[u8]) -> Vec<u8> {
    let seal = sealer.seal(name_of(blob).as_bytes(), said);
    [&seal[..], &leaves.to_le_bytes(), MAGIC].concat()
}

/// Writes the tags of one blob.
pub struct TagWriter {
    cache: Arc<TagCache>,
    /// What is of no use when this is there.
    replaced: Option<PathBuf>,
    leaf_shift: u8,
    /// What is said of the leaves before.
    leaves: Vec<[u8; LEAF_BYTES]>,
    /// The records of the leaf that is written.
    records: Vec<u8>,
    /// All records, before it is worth a file.
    first: Vec<u8>,
    file: Option<Aside>,
    /// Something could not be written.
    is_lost: bool,
}

impl TagWriter {
    /// Adds a tag of bytes that lie behind those before.
    pub fn add(&mut self, tagged: Tagged) {
        let Tagged { at, len, tag } = tagged;
        let leaf = at >> self.leaf_shift;
        if leaf >= LEAVES_MAX {
            (self.file, self.is_lost) = (None, true);
        }
        if self.is_lost {
            return;
        }
        self.end_leaves(leaf);
        let within = (at & ((1 << self.leaf_shift) - 1)) as u32;
        self.records.extend_from_slice(&within.to_le_bytes());
        self.records.extend_from_slice(&(len as u16).to_le_bytes());
        self.records.extend_from_slice(&tag.to_bytes());
    }

    /// Ends all leaves before this one.
    fn end_leaves(&mut self, leaf: u64) {
        while (self.leaves.len() as u64) < leaf {
            let records = std::mem::take(&mut self.records);
            let mut said = [0; LEAF_BYTES];
            said[..4].copy_from_slice(&((records.len() / RECORD_BYTES) as u32).to_le_bytes());
            said[4..].copy_from_slice(&self.cache.sealer.of_leaf(self.leaves.len() as u64, &records));
            self.leaves.push(said);
            self.write(&records);
        }
    }

    fn write(&mut self, bytes: &[u8]) {
        match &mut self.file {
            None => {
                self.first.extend_from_slice(bytes);
                if self.first.len() >= RECORDS_MIN * RECORD_BYTES {
                    let begun = Aside::create(&self.cache.folder).and_then(|mut aside| {
                        aside.file.write_all(&self.first)?;
                        Ok(aside)
                    });
                    self.file = self.noted(begun);
                    self.first = Vec::new();
                }
            }
            Some(aside) => {
                let written = aside.file.write_all(bytes);
                self.noted(written);
            }
        }
    }

    /// After an error nothing more is written: a save does not fail for want of tags.
    fn noted<T>(&mut self, done: io::Result<T>) -> Option<T> {
        if let Err(error) = &done {
            tracing::debug!("tags cannot be written: {error}");
            self.is_lost = true;
            self.file = None;
        }
        done.ok()
    }

    /// All were of this blob.
    pub fn finish(mut self, blob: &Blob) {
        let Some(leaves) = leaves_of(blob).filter(|_| !self.is_lost) else { return };
        self.end_leaves(leaves);
        let Some(aside) = self.file.take() else { return };
        let path = self.cache.folder.join(name_of(blob));
        let kept = self.keep(aside, blob, &path);
        if self.noted(kept).is_none() {
            return;
        }
        if let Some(replaced) = self.replaced.take_if(|replaced| *replaced != path) {
            let _ = fs::remove_file(replaced);
        }
        let tidied = self.cache.tidy();
        self.noted(tidied);
    }

    fn keep(&self, mut aside: Aside, blob: &Blob, path: &Path) -> io::Result<()> {
        let said = self.leaves.as_flattened();
        aside.file.write_all(said)?;
        aside.file.write_all(&end_of(self.cache.sealer, blob, self.leaves.len() as u64, said))?;
        aside.file.flush()?;
        fs::rename(&aside.path, path)
    }
}
