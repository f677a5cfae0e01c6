//! Files of tags: those of one member each, named after its blob, and never more than a help.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, Read, Seek, Write};
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

const MAGIC: &[u8; 8] = b"stdchkT4";
const TAG_BYTES: usize = 16;
/// A place in a leaf, a length, and a tag.
const RECORD_BYTES: usize = 4 + 2 + TAG_BYTES;
/// What is said of a leaf: how many tags it has, of how many bytes each if they lie side by side from its beginning on, and their seal.
const LEAF_BYTES: usize = 4 + 2 + SEAL_BYTES;
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
/// A file whose tags are of no use any more. The next one is written in its place: memory that has to be found for a new one takes longer than writing.
const SPARE: &str = "spare";

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
        let (leaves, tags, first) = (Vec::new(), Vec::new(), (Vec::new(), 0));
        TagWriter { cache: self, replaced, leaf_shift, leaves, tags, first, file: None, is_lost: false }
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
    if name == SPARE {
        return Some(BEGUN);
    }
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
        let path = Aside::path_in(folder)?;
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        Ok(Aside::of(path, file))
    }

    /// In the place of the spare file, if there is one: what it has is written over. Whoever still reads it finds that its seals are wrong.
    fn again(folder: &Path) -> io::Result<Aside> {
        let path = Aside::path_in(folder)?;
        if fs::rename(folder.join(SPARE), &path).is_err() {
            return Aside::create(folder);
        }
        let file = OpenOptions::new().write(true).open(&path)?;
        Ok(Aside::of(path, file))
    }

    fn path_in(folder: &Path) -> io::Result<PathBuf> {
        let random = random_u64().map_err(io::Error::other)?;
        Ok(folder.join(format!("{random:016x}{BEGUN_SUFFIX}")))
    }

    fn of(path: PathBuf, file: File) -> Aside {
        Aside { path, file: BufWriter::with_capacity(256 << 10, file) }
    }

    /// All was written: what lay behind it goes.
    fn end(&mut self) -> io::Result<()> {
        let len = self.file.stream_position()?;
        self.file.get_ref().set_len(len)
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
    /// Bytes before them.
    before: u64,
    count: u32,
    /// Bytes of each page, if they lie side by side from the beginning of the leaf on; else 0.
    each: u16,
    seal: [u8; SEAL_BYTES],
}

impl LeafTags {
    fn decode(said: &[u8; LEAF_BYTES], before: u64) -> LeafTags {
        let (count, rest) = said.split_first_chunk::<4>().expect("22 bytes");
        let (each, seal) = rest.split_first_chunk::<2>().expect("18 bytes");
        let (count, each) = (u32::from_le_bytes(*count), u16::from_le_bytes(*each));
        LeafTags { before, count, each, seal: seal.try_into().expect("16 bytes") }
    }

    fn encode(&self) -> [u8; LEAF_BYTES] {
        let mut said = [0; LEAF_BYTES];
        said[..4].copy_from_slice(&self.count.to_le_bytes());
        said[4..6].copy_from_slice(&self.each.to_le_bytes());
        said[6..].copy_from_slice(&self.seal);
        said
    }

    fn bytes(&self) -> u64 {
        let each = if self.each > 0 { TAG_BYTES } else { RECORD_BYTES };
        u64::from(self.count) * each as u64
    }

    /// The tags that were read, of a leaf that begins at `start`.
    fn tags(&self, start: u64, bytes: &[u8], tags: &mut Vec<Tagged>) {
        let mut push = |at: u64, len: u16, tag: &[u8; TAG_BYTES]| {
            let tag = Tag::from_bytes(*tag);
            tags.extend(tag.map(|tag| Tagged { at: start + at, len: u32::from(len), tag }));
        };
        if self.each > 0 {
            for (index, tag) in bytes.as_chunks().0.iter().enumerate() {
                push(index as u64 * u64::from(self.each), self.each, tag);
            }
            return;
        }
        for record in bytes.as_chunks::<RECORD_BYTES>().0 {
            let (at, rest) = record.split_first_chunk::<4>().expect("22 bytes");
            let (len, tag) = rest.split_first_chunk::<2>().expect("18 bytes");
            push(
                u64::from(u32::from_le_bytes(*at)),
                u16::from_le_bytes(*len),
                tag.try_into().expect("16 bytes"),
            );
        }
    }
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
        let mut leaf = |said| {
            let leaf = LeafTags::decode(said, before);
            before += leaf.bytes();
            leaf
        };
        let leaves: Vec<LeafTags> = said.as_chunks().0.iter().map(&mut leaf).collect();
        if before != tail_at || leaves.iter().any(|leaf| leaf.count > RECORDS_MAX) {
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
            let mut bytes = vec![0; leaf.bytes() as usize];
            self.file.read_exact_at(&mut bytes, leaf.before)?;
            if self.sealer.of_leaf(number, &bytes) != leaf.seal {
                return Err(io::Error::new(ErrorKind::InvalidData, "tags are not what was written"));
            }
            tags.reserve(leaf.count as usize);
            leaf.tags(number << self.leaf_shift, &bytes, &mut tags);
        }
        Ok(tags)
    }
}

/// Tags of a leaf that begins at `start` as they are written, and how many bytes each page has if they lie side by side from there on.
fn encoded(tags: &[Tagged], start: u64) -> (u16, Vec<u8>) {
    let each = tags.first().map_or(0, |tagged| tagged.len);
    let lies_there = |(index, tagged): (usize, &Tagged)| {
        tagged.len == each && tagged.at - start == index as u64 * u64::from(each)
    };
    if tags.iter().enumerate().all(lies_there) {
        return (each as u16, tags.iter().flat_map(|tagged| tagged.tag.to_bytes()).collect());
    }
    let mut bytes = Vec::with_capacity(tags.len() * RECORD_BYTES);
    for tagged in tags {
        bytes.extend_from_slice(&((tagged.at - start) as u32).to_le_bytes());
        bytes.extend_from_slice(&(tagged.len as u16).to_le_bytes());
        bytes.extend_from_slice(&tagged.tag.to_bytes());
    }
    (0, bytes)
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
    /// The tags of the leaf that is written.
    tags: Vec<Tagged>,
    /// All that is written so far, and how many tags that are, before it is worth a file.
    first: (Vec<u8>, usize),
    file: Option<Aside>,
    /// Something could not be written.
    is_lost: bool,
}

impl TagWriter {
    /// Adds a tag of bytes that lie behind those before.
    pub fn add(&mut self, tagged: Tagged) {
        let leaf = tagged.at >> self.leaf_shift;
        if leaf >= LEAVES_MAX {
            (self.file, self.is_lost) = (None, true);
        }
        if self.is_lost {
            return;
        }
        self.end_leaves(leaf);
        self.tags.push(tagged);
    }

    /// Ends all leaves before this one.
    fn end_leaves(&mut self, leaf: u64) {
        while (self.leaves.len() as u64) < leaf {
            let number = self.leaves.len() as u64;
            let (each, bytes) = encoded(&self.tags, number << self.leaf_shift);
            let seal = self.cache.sealer.of_leaf(number, &bytes);
            let count = self.tags.len();
            self.leaves.push(LeafTags { before: 0, count: count as u32, each, seal }.encode());
            self.tags.clear();
            self.write(&bytes, count);
        }
    }

    /// Writes what `count` tags are.
    fn write(&mut self, bytes: &[u8], count: usize) {
        match &mut self.file {
            None => {
                let (first, first_count) = &mut self.first;
                first.extend_from_slice(bytes);
                *first_count += count;
                if *first_count >= RECORDS_MIN {
                    let (first, _) = std::mem::take(&mut self.first);
                    let begun = Aside::again(&self.cache.folder).and_then(|mut aside| {
                        aside.file.write_all(&first)?;
                        Ok(aside)
                    });
                    self.file = self.noted(begun);
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
            let _ = fs::rename(replaced, self.cache.folder.join(SPARE));
        }
        let tidied = self.cache.tidy();
        self.noted(tidied);
    }

    fn keep(&self, mut aside: Aside, blob: &Blob, path: &Path) -> io::Result<()> {
        let said = self.leaves.as_flattened();
        aside.file.write_all(said)?;
        aside.file.write_all(&end_of(self.cache.sealer, blob, self.leaves.len() as u64, said))?;
        aside.end()?;
        fs::rename(&aside.path, path)
    }
}
