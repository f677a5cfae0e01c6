//! Who has files open to write them: they come, write one version together, and leave it to the last one to publish it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use stdchk_catalog::State;
use stdchk_catalog::tree::{Body, Named};

use super::change::Attributes;
use super::fault::{Fault, Outcome};
use super::layered::Layered;
use super::writing::Writing;
use super::{Files, locked, new_number, newest};

/// The turn of one who is about to take part in writing a file.
struct Turn<'f> {
    files: &'f Files,
    number: u64,
}

impl Turn<'_> {
    fn of(files: &Files, number: u64) -> Turn<'_> {
        let mut joining = locked(&files.joining);
        while !joining.insert(number) {
            joining = files.has_joined.wait(joining).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        Turn { files, number }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        locked(&self.files.joining).remove(&self.number);
        self.files.has_joined.notify_all();
    }
}

impl Files {
    /// Opens a file to write it, together with all others who do.
    pub fn open_to_write(&self, number: u64) -> Outcome<Arc<Writing>> {
        self.check_writable()?;
        self.gather_if(number)?;
        loop {
            if let Some(writing) = self.writing(number)
                && self.join(&writing)
            {
                let joined = writing.inner().join_again(self);
                if let Err(fault) = joined {
                    let _ = self.close_writer(&writing);
                    return Err(fault);
                }
                return Ok(writing);
            }
            let state = self.state()?;
            if self.has_others(&state) {
                match self.open_shared(number)? {
                    Some(writing) => return Ok(writing),
                    None => continue,
                }
            }
            let node = state.tree().get(number).ok_or(Fault::Missing)?.node.clone();
            let version = newest(&state, &node);
            let layers = self.layers_of(&state, number)?;
            let mut table = self.table();
            // Somebody here may have written it meanwhile, or be about to.
            let known = locked(&self.known).as_ref().map_or(state, |known| known.state.clone());
            let is_newest =
                known.tree().get(number).is_some_and(|named| newest(&known, &named.node) == version);
            let is_taken = table.writing.get(&number).is_some_and(|there| !there.has_failed());
            if is_newest && !is_taken {
                let writing = Arc::new(Writing::new(node, None, layers));
                writing.inner().opens = 1;
                table.writing.insert(number, writing.clone());
                return Ok(writing);
            }
        }
    }

    /// The same where there are other mounts; nothing if somebody here was faster.
    fn open_shared(&self, number: u64) -> Outcome<Option<Arc<Writing>>> {
        // One at a time joins: whoever else wants to write it here joins that one.
        let _turn = Turn::of(self, number);
        if self.writing(number).is_some_and(|there| !there.has_failed()) {
            return Ok(None);
        }
        let state = self.state()?;
        let node = state.tree().get(number).ok_or(Fault::Missing)?.node.clone();
        if !matches!(node.body, Body::File(_)) {
            return Err(if node.is_directory() { Fault::IsDirectory } else { Fault::Invalid });
        }
        let writing = Arc::new(Writing::shared(node, Layered::default(), None));
        writing.inner().opens = 1;
        self.table().writing.insert(number, writing.clone());
        let joined = writing.inner().join_again(self);
        match joined {
            Ok(()) => Ok(Some(writing)),
            Err(fault) => {
                // Others may have left to this mount meanwhile what they wrote.
                let _ = self.close_writer(&writing);
                Err(fault)
            }
        }
    }

    /// The newest version of a file, to be written above.
    fn layers_of(&self, state: &State, number: u64) -> Outcome<Layered> {
        let node = &state.tree().get(number).ok_or(Fault::Missing)?.node;
        match (&node.body, newest(state, node)) {
            (Body::Directory, _) => Err(Fault::IsDirectory),
            (Body::Link(_) | Body::Special(..), _) => Err(Fault::Invalid),
            (Body::File(_), None) => Ok(Layered::default()),
            (Body::File(_), Some(version)) => Ok(Layered::of(self.open_version(state, version)?)),
        }
    }

    /// Counts one more who writes a file; not if that is not written any more, or cannot become a version.
    fn join(&self, writing: &Arc<Writing>) -> bool {
        let mut inner = writing.inner();
        let is_it =
            self.table().writing.get(&writing.number).is_some_and(|there| Arc::ptr_eq(there, writing));
        if !is_it || writing.has_failed() {
            return false;
        }
        inner.opens += 1;
        // What was published is theirs who wrote it; from now on there is another version.
        if !inner.is_dirty {
            inner.published = None;
        }
        true
    }

    /// Makes a new file, which others know when it is closed.
    pub fn create(&self, parent: u64, name: &str, attributes: &Attributes) -> Outcome<Arc<Writing>> {
        self.check_writable()?;
        self.check_new(parent, name)?;
        let number = new_number()?;
        let node = attributes.node(number, Body::File(Vec::new()));
        if self.has_others(&*self.state()?) {
            let named = Named { parent, name: name.to_owned(), node: node.clone() };
            let (joined, _) = self.join_writers(number, Some(&named))?;
            let writing = Arc::new(Writing::shared(node, Layered::default(), Some(joined)));
            writing.inner().opens = 1;
            self.table().writing.insert(number, writing.clone());
            return Ok(writing);
        }
        let writing = Arc::new(Writing::new(node, Some((parent, name.to_owned())), Layered::default()));
        writing.inner().opens = 1;
        let mut table = self.table();
        if table.names.contains_key(&(parent, name.to_owned())) {
            return Err(Fault::Exists);
        }
        table.names.insert((parent, name.to_owned()), number);
        table.writing.insert(number, writing.clone());
        drop(table);
        self.touch(parent);
        Ok(writing)
    }

    /// Notes that so many more of those who opened it for writing have closed their last descriptor of it. When all have, what was written
    /// so far is published.
    pub fn flush(&self, writing: &Arc<Writing>, closed: u32) -> Outcome<()> {
        {
            let mut inner = writing.inner();
            inner.closed = (inner.closed + closed).min(inner.opens);
        }
        // Somebody else may open it before this comes to it: then it is his to publish.
        self.publish(writing, &mut |inner| {
            let are_all = inner.closed >= inner.opens;
            are_all && {
                inner.was_torn(true);
                true
            }
        })
    }

    /// The end of what [`Files::open_to_write`] or [`Files::create`] began; with the last one what was written becomes a version.
    pub fn close_writer(&self, writing: &Arc<Writing>) -> Outcome<()> {
        self.end_writer(writing, false)
    }

    /// The same for one that may have been told of by [`Files::flush`].
    pub fn end_writer(&self, writing: &Arc<Writing>, was_closed: bool) -> Outcome<()> {
        let is_last = {
            let mut inner = writing.inner();
            inner.opens -= 1;
            // The kernel may let one go before that it was closed is noted.
            inner.closed = inner.closed.saturating_sub(u32::from(was_closed)).min(inner.opens);
            inner.opens == 0
        };
        if !is_last {
            return Ok(());
        }
        let published = self.publish(writing, &mut |inner| {
            let is_last = inner.opens == 0;
            if is_last && inner.was_torn(true) {
                inner.abandon("a process that wrote it was killed");
            }
            is_last
        });
        let mut inner = writing.inner();
        if inner.opens == 0 && !writing.waits.load(Ordering::Acquire) {
            let mut table = self.table();
            if table.writing.get(&writing.number).is_some_and(|there| Arc::ptr_eq(there, writing)) {
                table.writing.remove(&writing.number);
            }
            if let Some(place) = inner.place.take()
                && table.names.get(&place) == Some(&writing.number)
            {
                table.names.remove(&place);
            }
            drop(table);
            // Who reads it by what was written goes on with that.
            match inner.published {
                Some(_) => inner.let_go(),
                None => inner.give_up(),
            }
        }
        published
    }
}
