//! The one error type of the house: a kind for programs, a context for people, the cause kept.

use std::fmt;

/// What sort of failure this is. Programs decide by it; the table in `docs/CLI.md` maps it to exit codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// The caller asked for something that makes no sense, such as a bad name or option.
    Invalid,
    /// What was asked for is not there.
    NotFound,
    /// Something of that name is there already.
    Exists,
    /// Bytes are not what their hash or their format says.
    Corrupt,
    /// Written by a newer version, or with a feature this program does not have.
    Unsupported,
    /// The session was fenced or has ended; nothing of it was or will be committed.
    Fenced,
    /// Others changed the same thing first; trying again may work.
    Conflict,
    /// No space or quota is left.
    Full,
    /// The operating system refused permission.
    Denied,
    /// Any other failure of the operating system or the media.
    Io,
}

impl Kind {
    const WORDS: [(Kind, &'static str); 10] = [
        (Kind::Invalid, "invalid"),
        (Kind::NotFound, "not-found"),
        (Kind::Exists, "exists"),
        (Kind::Corrupt, "corrupt"),
        (Kind::Unsupported, "unsupported"),
        (Kind::Fenced, "fenced"),
        (Kind::Conflict, "conflict"),
        (Kind::Full, "full"),
        (Kind::Denied, "denied"),
        (Kind::Io, "io"),
    ];

    /// The word for this kind in messages, JSON and on the wire.
    pub fn as_str(self) -> &'static str {
        Kind::WORDS.iter().find(|(kind, _)| *kind == self).expect("every kind has a word").1
    }

    /// The kind of a word.
    pub fn of_word(word: &str) -> Option<Kind> {
        Kind::WORDS.iter().find(|(_, known)| *known == word).map(|(kind, _)| *kind)
    }

    /// Whether the same call may succeed later without anything else being done.
    pub fn is_retryable(self) -> bool {
        matches!(self, Kind::Conflict)
    }

    fn of_io(kind: std::io::ErrorKind) -> Kind {
        use std::io::ErrorKind as E;
        match kind {
            E::NotFound => Kind::NotFound,
            E::AlreadyExists => Kind::Exists,
            E::PermissionDenied | E::ReadOnlyFilesystem => Kind::Denied,
            E::StorageFull | E::QuotaExceeded => Kind::Full,
            _ => Kind::Io,
        }
    }
}

/// A failure: what kind, what happened to what, and the cause.
#[derive(Debug)]
pub struct Error {
    kind: Kind,
    context: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// The result of anything in stdchk that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// A failure of `kind`; `context` says what happened to what.
    pub fn new(kind: Kind, context: impl Into<String>) -> Error {
        Error { kind, context: context.into(), source: None }
    }

    /// Bytes that are not what they should be.
    pub fn corrupt(context: impl Into<String>) -> Error {
        Error::new(Kind::Corrupt, context)
    }

    /// A request that makes no sense.
    pub fn invalid(context: impl Into<String>) -> Error {
        Error::new(Kind::Invalid, context)
    }

    /// A failure of the operating system while `context` was done.
    pub fn io(context: impl Into<String>, source: std::io::Error) -> Error {
        Error { kind: Kind::of_io(source.kind()), context: context.into(), source: Some(Box::new(source)) }
    }

    /// The same failure seen from further away: kind kept, this error as the cause.
    pub fn within(self, context: impl Into<String>) -> Error {
        Error { kind: self.kind, context: context.into(), source: Some(Box::new(self)) }
    }

    /// The same failure as another kind, for the places that know better what it means.
    pub fn with_kind(mut self, kind: Kind) -> Error {
        self.kind = kind;
        self
    }

    /// The kind.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// What happened to what, without the causes.
    pub fn context(&self) -> &str {
        &self.context
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.context)?;
        if let Some(source) = &self.source {
            write!(f, ": {source}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

/// Adds context to the failures of a result.
pub trait Context<T> {
    /// Wraps a failure with what was being done.
    fn context(self, context: impl FnOnce() -> String) -> Result<T>;
}

impl<T> Context<T> for Result<T> {
    fn context(self, context: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| error.within(context()))
    }
}

impl<T> Context<T> for std::io::Result<T> {
    fn context(self, context: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| Error::io(context(), error))
    }
}
