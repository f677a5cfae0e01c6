//! Files of tags: those of one member each, named after its blob, and never more than a help.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, Read, Write};
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use stdchk_object::hash::plain;
use stdchk_object::tree::Blob;
use stdchk_object::wire::Writer;
use stdchk_tag::{SECRET_BYTES, Tag, Tagger};

use crate::session::random_u64;

const MAGIC: &[u8; 8] = b"stdchkT1";
/// A place in a leaf, and a tag.
const RECORD_BYTES: usize = 4 + 16;
/// How many leaves there are, and the magic.
const TAIL_BYTES: u64 = 16;
/// Fewer are not worth a file.
pub const RECORDS_MIN: usize = 3276;
/// What nobody has written for so long is of no use any more.
const LASTING: Duration = Duration::from_secs(30 * 24 * 3600);

/// The tags of one user on one machine.
pub struct TagCache {
    folder: PathBuf,
    tagger: Tagger,
}

impl TagCache {
    /// Those in a directory, which is made if there is none. It must be the user's own.
    pub fn open(directory: &Path) -> io::Result<TagCache> {
        let folder = directory.join("tags");
        DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        check_is_ours(directory)?;
        check_is_ours(&folder)?;
        let tagger = Tagger::new(&secret_in(directory)?);
        let tagger = tagger.ok_or_else(|| io::Error::new(ErrorKind::Unsupported, "no such instructions"))?;
        Ok(TagCache { folder, tagger })
    }

    /// What makes the tags.
    pub fn tagger(&self) -> &Tagger {
        &self.tagger
    }

    fn path_of(&self, blob: &Blob) -> PathBuf {
        let mut writer = Writer::new();
        blob.encode(&mut writer);
        let name = u128::from_be_bytes(plain(&writer.into_bytes()).half());
        self.folder.join(format!("{name:032x}"))
    }

    /// The tags of a blob, if there are any.
    pub fn find(&self, blob: &Blob) -> Option<Tags> {
        let tags = Tags::open(&self.path_of(blob), blob);
        tags.inspect_err(|error| tracing::debug!("no tags: {error}")).ok()
    }

    /// Begins to write those of another blob, which takes the place of its parent.
    pub fn begin(self: Arc<Self>, leaf_shift: u8, parent: Option<&Blob>) -> TagWriter {
        let replaced = parent.map(|parent| self.path_of(parent));
        let (counts, first) = (Vec::new(), Vec::new());
        TagWriter { cache: self, replaced, leaf_shift, counts, first, file: None, is_lost: false }
    }

    /// Removes what is too old.
    fn tidy(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.folder)?.flatten() {
            let written = entry.metadata().and_then(|meta| meta.modified());
            let age = written.ok().and_then(|written| SystemTime::now().duration_since(written).ok());
            if age.is_some_and(|age| age > LASTING) {
                let _ = fs::remove_file(entry.path());
            }
        }
        Ok(())
    }
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
        let path = folder.join(format!("{random:016x}.new"));
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        Ok(Aside { path, file: BufWriter::with_capacity(256 << 10, file) })
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// The secret of a directory, made if there is none.
fn secret_in(directory: &Path) -> io::Result<[u8; SECRET_BYTES]> {
    let path = directory.join("secret");
    let read = || -> io::Result<[u8; SECRET_BYTES]> {
        let mut secret = [0; SECRET_BYTES];
        File::open(&path)?.read_exact(&mut secret)?;
        Ok(secret)
    };
    match read() {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        read => return read,
    }
    let mut aside = Aside::create(directory)?;
    for _ in 0..SECRET_BYTES / 8 {
        aside.file.write_all(&random_u64().map_err(io::Error::other)?.to_le_bytes())?;
    }
    aside.file.flush()?;
    // Another one may have been faster: there is one secret only.
    match fs::hard_link(&aside.path, &path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        _ => read(),
    }
}

/// The tags of a blob.
pub struct Tags {
    file: File,
    leaf_shift: u8,
    /// How many come before those of each leaf, and how many there are.
    before: Vec<u64>,
}

impl Tags {
    fn open(path: &Path, blob: &Blob) -> io::Result<Tags> {
        let file = File::open(path)?;
        let len = file.metadata()?.len();
        let wrong = || io::Error::new(ErrorKind::InvalidData, "not a file of tags");
        let leaves = blob.len.div_ceil(blob.leaf_bytes());
        let tail_bytes = leaves.checked_mul(4).and_then(|bytes| bytes.checked_add(TAIL_BYTES));
        let tail_at = tail_bytes.and_then(|bytes| len.checked_sub(bytes)).ok_or_else(wrong)?;
        let mut tail = vec![0; (len - tail_at) as usize];
        file.read_exact_at(&mut tail, tail_at)?;
        let (counts, end) = tail.split_at(tail.len() - TAIL_BYTES as usize);
        if end[..8] != leaves.to_le_bytes() || &end[8..] != MAGIC {
            return Err(wrong());
        }
        let mut sum = 0;
        let mut before = vec![0];
        for count in counts.as_chunks::<4>().0 {
            sum += u64::from(u32::from_le_bytes(*count));
            before.push(sum);
        }
        if sum.checked_mul(RECORD_BYTES as u64) != Some(tail_at) {
            return Err(wrong());
        }
        Ok(Tags { file, leaf_shift: blob.leaf_shift, before })
    }

    /// The tags of what begins in a range of the blob, in the order of their places.
    pub fn within(&self, range: Range<u64>) -> Vec<(u64, Tag)> {
        let read = self.read(range.start >> self.leaf_shift, range.end.saturating_sub(1) >> self.leaf_shift);
        let mut tags = read.unwrap_or_else(|error| {
            tracing::debug!("tags cannot be read: {error}");
            Vec::new()
        });
        tags.retain(|(at, _)| range.contains(at));
        tags
    }

    /// Those of leaves from `first` to `last`.
    fn read(&self, first: u64, last: u64) -> io::Result<Vec<(u64, Tag)>> {
        let mut tags = Vec::new();
        for leaf in first..=last {
            let bounds = usize::try_from(leaf).ok().and_then(|leaf| self.before.get(leaf..leaf + 2));
            let Some(&[from, to]) = bounds else { break };
            let mut bytes = vec![0; (to - from) as usize * RECORD_BYTES];
            self.file.read_exact_at(&mut bytes, from * RECORD_BYTES as u64)?;
            for record in bytes.as_chunks::<RECORD_BYTES>().0 {
                let (at, tag) = record.split_first_chunk::<4>().expect("20 bytes");
                let at = (leaf << self.leaf_shift) + u64::from(u32::from_le_bytes(*at));
                let tag = Tag::from_bytes(tag.try_into().expect("16 bytes"));
                tags.extend(tag.map(|tag| (at, tag)));
            }
        }
        Ok(tags)
    }
}

/// Writes the tags of one blob.
pub struct TagWriter {
    cache: Arc<TagCache>,
    /// What is of no use when this is there.
    replaced: Option<PathBuf>,
    leaf_shift: u8,
    /// How many begin in each leaf so far.
    counts: Vec<u32>,
    /// The first ones, before it is worth a file.
    first: Vec<u8>,
    file: Option<Aside>,
    /// Something could not be written.
    is_lost: bool,
}

impl TagWriter {
    /// Adds the tag of the chunk that begins at `at`, behind those before.
    pub fn add(&mut self, at: u64, tag: Tag) {
        let leaf = (at >> self.leaf_shift) as usize;
        if leaf >= self.counts.len() {
            self.counts.resize(leaf + 1, 0);
        }
        self.counts[leaf] += 1;
        let within = (at & ((1 << self.leaf_shift) - 1)) as u32;
        self.write(&within.to_le_bytes());
        self.write(&tag.to_bytes());
    }

    fn write(&mut self, bytes: &[u8]) {
        match &mut self.file {
            _ if self.is_lost => {}
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
        let Some(aside) = self.file.take() else { return };
        let path = self.cache.path_of(blob);
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

    fn keep(&mut self, mut aside: Aside, blob: &Blob, path: &Path) -> io::Result<()> {
        let leaves = blob.len.div_ceil(blob.leaf_bytes());
        self.counts.resize(usize::try_from(leaves).map_err(io::Error::other)?, 0);
        self.counts.iter().try_for_each(|count| aside.file.write_all(&count.to_le_bytes()))?;
        aside.file.write_all(&leaves.to_le_bytes())?;
        aside.file.write_all(MAGIC)?;
        aside.file.flush()?;
        fs::rename(&aside.path, path)
    }
}
