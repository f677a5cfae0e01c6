//! The bucket, and what is asked of it.

use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::TryStreamExt;
use object_store::aws::AmazonS3Builder;
use object_store::path::Path;
use object_store::{
    GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload,
};
use stdchk_object::{Error, Kind, Result};
use tokio::runtime::Runtime;

/// Threads that carry requests on: they mostly wait.
const THREADS: usize = 2;

/// A prefix of a bucket as [`Store`](stdchk_store::Store) and [`Objects`](stdchk_store::Objects).
pub struct S3Store {
    bucket: Arc<dyn ObjectStore>,
    prefix: Path,
    /// For messages.
    pub(crate) place: String,
    /// Tells this process's probe of the store's clock from those of others.
    pub(crate) tag: String,
    runtime: Runtime,
}

/// What came of a request that may find that there is something, or nothing.
pub(crate) enum Got {
    Bytes(Bytes),
    Nothing,
    /// The object ends before.
    Ended,
}

impl S3Store {
    /// The bucket and prefix of `s3://bucket/prefix`, by what the environment says. `tag` must differ between any two processes.
    pub fn open(url: &str, tag: String) -> Result<S3Store> {
        S3Store::open_with(url, tag, AmazonS3Builder::from_env())
    }

    /// The same by settings that have the names of the environment's variables.
    pub fn open_by<'s>(
        url: &str,
        tag: String,
        settings: impl IntoIterator<Item = (&'s str, String)>,
    ) -> Result<S3Store> {
        let mut builder = AmazonS3Builder::new();
        for (name, value) in settings {
            let key = name.to_ascii_lowercase().parse();
            builder = builder
                .with_config(key.map_err(|error| failed(format!("{name} is no setting"), error))?, value);
        }
        S3Store::open_with(url, tag, builder)
    }

    fn open_with(url: &str, tag: String, builder: AmazonS3Builder) -> Result<S3Store> {
        let bad = || Error::invalid(format!("{url:?} is no place in a bucket: write s3://BUCKET/PREFIX"));
        let rest = url.strip_prefix("s3://").ok_or_else(bad)?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.is_empty() {
            return Err(bad());
        }
        // Of several ways to encrypt one is chosen, once for the process; somebody else may have chosen before.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let built = builder.with_bucket_name(bucket).build();
        let bucket = built.map_err(|error| failed(format!("cannot use {url}"), error))?;
        S3Store::on(Arc::new(bucket), prefix.trim_matches('/'), url.trim_end_matches('/').to_owned(), tag)
    }

    /// A prefix of any store of that library.
    pub fn on(bucket: Arc<dyn ObjectStore>, prefix: &str, place: String, tag: String) -> Result<S3Store> {
        let prefix = Path::parse(prefix)
            .map_err(|error| Error::invalid(format!("{prefix:?} cannot be a prefix: {error}")))?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("stdchk-s3")
            .enable_all()
            .build()
            .map_err(|error| Error::io("cannot start threads for requests", error))?;
        Ok(S3Store { bucket, prefix, place, tag, runtime })
    }

    fn wait<T>(
        &self,
        what: &str,
        name: &str,
        asked: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T> {
        self.runtime.block_on(asked).map_err(|error| failed(format!("{what} {}/{name}", self.place), error))
    }

    fn path(&self, name: &str) -> Path {
        name.split('/')
            .filter(|part| !part.is_empty())
            .fold(self.prefix.clone(), |path, part| path.join(part))
    }

    /// Writes an object; `Exists` where there is one that must not be.
    pub(crate) fn put(&self, name: &str, pieces: &[&[u8]], mode: PutMode) -> Result<()> {
        // Requests may be sent again, and outlive this call where it is given up: they have bytes of their own.
        let payload: PutPayload = pieces.iter().map(|piece| Bytes::copy_from_slice(piece)).collect();
        let options = PutOptions { mode, ..PutOptions::default() };
        self.wait("cannot write", name, self.bucket.put_opts(&self.path(name), payload, options)).map(drop)
    }

    /// Bytes of an object from `offset` on, fewer than `len` where it ends.
    pub(crate) fn get(&self, name: &str, offset: u64, len: u64) -> Result<Got> {
        if len == 0 {
            return Ok(match self.head(name)? {
                None => Got::Nothing,
                Some(meta) if meta.size < offset => Got::Ended,
                Some(_) => Got::Bytes(Bytes::new()),
            });
        }
        let range = match offset.checked_add(len) {
            Some(end) if offset > 0 || end < u64::MAX => Some(GetRange::Bounded(offset..end)),
            Some(_) => None,
            None => Some(GetRange::Offset(offset)),
        };
        let options = GetOptions { range, ..GetOptions::default() };
        let path = self.path(name);
        let read = async { self.bucket.get_opts(&path, options).await?.bytes().await };
        match self.wait("cannot read", name, read) {
            Ok(bytes) => Ok(Got::Bytes(bytes)),
            Err(error) if error.kind() == Kind::NotFound => Ok(Got::Nothing),
            // A range that begins behind the end is refused, in words that differ from store to store.
            Err(error) => match self.head(name)? {
                Some(meta) if meta.size <= offset => Ok(Got::Ended),
                _ => Err(error),
            },
        }
    }

    /// What is known of an object, if it is there.
    pub(crate) fn head(&self, name: &str) -> Result<Option<ObjectMeta>> {
        let path = self.path(name);
        match self.wait("cannot find", name, self.bucket.head(&path)) {
            Ok(meta) => Ok(Some(meta)),
            Err(error) if error.kind() == Kind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The objects directly in a folder, each with its last name.
    pub(crate) fn folder(&self, folder: &str) -> Result<Vec<(String, ObjectMeta)>> {
        let path = self.path(folder);
        let listed = self.wait("cannot list", folder, self.bucket.list_with_delimiter(Some(&path)))?;
        let named = |meta: ObjectMeta| Some((meta.location.filename()?.to_owned(), meta));
        Ok(listed.objects.into_iter().filter_map(named).collect())
    }

    /// Calls `each` with the name below `folder` and the length of every object there, however deep.
    pub(crate) fn walk(&self, folder: &str, mut each: impl FnMut(String, u64)) -> Result<()> {
        let path = self.path(folder);
        let listed = self.bucket.list(Some(&path));
        let walked = listed.try_for_each(|meta| {
            if let Some(rest) = meta.location.prefix_match(&path) {
                let parts: Vec<String> = rest.map(|part| part.as_ref().to_owned()).collect();
                each(parts.join("/"), meta.size);
            }
            futures_util::future::ready(Ok(()))
        });
        self.wait("cannot list", folder, walked)
    }

    /// Removes objects; those that are not there are passed over.
    pub(crate) fn delete_all(&self, names: impl Iterator<Item = String>) -> Result<()> {
        let paths: Vec<object_store::Result<Path>> = names.map(|name| Ok(self.path(&name))).collect();
        let Some(Ok(first)) = paths.first() else { return Ok(()) };
        let what = first.to_string();
        let gone = self.bucket.delete_stream(Box::pin(futures_util::stream::iter(paths)));
        let each = gone.or_else(|error| async {
            match error {
                object_store::Error::NotFound { .. } => Ok(Path::default()),
                error => Err(error),
            }
        });
        self.wait("cannot remove", &what, each.try_for_each(|_| futures_util::future::ready(Ok(()))))
    }
}

fn failed(what: String, error: object_store::Error) -> Error {
    use object_store::Error as E;
    let kind = match &error {
        E::NotFound { .. } => Kind::NotFound,
        E::AlreadyExists { .. } | E::Precondition { .. } => Kind::Exists,
        E::PermissionDenied { .. } | E::Unauthenticated { .. } => Kind::Denied,
        E::NotImplemented { .. } | E::NotSupported { .. } => Kind::Unsupported,
        E::InvalidPath { .. } => Kind::Invalid,
        _ => Kind::Io,
    };
    Error::io(what, std::io::Error::other(error)).with_kind(kind)
}
