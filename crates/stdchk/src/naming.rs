//! Names as people write them: `app`, `app@step`, `app@step.generation`, `app@step:member`, and the convention
//! `A.Ni.Tj` for files of many ranks and steps (section IV.D of the stdchk paper).

use stdchk_catalog::{CheckpointEntry, State};
use stdchk_object::{AppName, Error, Kind, Result};

/// Which checkpoint is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// The application.
    pub app: AppName,
    /// The step; `None` is the newest checkpoint.
    pub step: Option<u64>,
    /// The generation; `None` is the newest of the step.
    pub generation: Option<u32>,
}

impl Spec {
    /// Reads `app`, `app@step` or `app@step.generation`.
    pub fn parse(text: &str) -> Result<Spec> {
        let Some((app, step)) = text.split_once('@') else {
            return Ok(Spec { app: AppName::new(text)?, step: None, generation: None });
        };
        let bad = || {
            Error::invalid(format!(
                "{text:?} does not name a checkpoint: write app, app@step or app@step.generation"
            ))
        };
        let (step, generation) = match step.split_once('.') {
            None => (step, None),
            Some((step, generation)) => (step, Some(number(generation).ok_or_else(bad)?)),
        };
        let generation = generation.map(|g| u32::try_from(g).map_err(|_| bad())).transpose()?;
        Ok(Spec { app: AppName::new(app)?, step: Some(number(step).ok_or_else(bad)?), generation })
    }

    /// Reads `app@step:member`; the member may contain anything, further colons too.
    pub fn parse_member(text: &str) -> Result<(Spec, String)> {
        match text.split_once(':') {
            Some((spec, member)) if !member.is_empty() => Ok((Spec::parse(spec)?, member.to_owned())),
            _ => Err(Error::invalid(format!("{text:?} does not name a member: write app@step:path"))),
        }
    }

    /// Whether a checkpoint is meant by this.
    pub fn matches(&self, entry: &CheckpointEntry) -> bool {
        self.app == entry.app
            && self.step.is_none_or(|step| step == entry.step)
            && self.generation.is_none_or(|generation| generation == entry.generation)
    }

    /// The checkpoints that are meant, newest first; none is an error that says what there is.
    pub fn find<'a>(&self, state: &'a State) -> Result<Vec<&'a CheckpointEntry>> {
        let Some(app) = state.apps().get(&self.app).filter(|app| app.is_known()) else {
            return Err(Error::new(Kind::NotFound, format!("there is no application {}", self.app)));
        };
        let found: Vec<_> = app.newest_first().into_iter().filter(|entry| self.matches(entry)).collect();
        if found.is_empty() {
            return Err(Error::new(Kind::NotFound, format!("there is no checkpoint {self}")));
        }
        Ok(found)
    }
}

impl std::fmt::Display for Spec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.app)?;
        self.step.iter().try_for_each(|step| write!(f, "@{step}"))?;
        self.generation.iter().try_for_each(|generation| write!(f, ".{generation}"))
    }
}

fn number(digits: &str) -> Option<u64> {
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok()
}

/// What a file's name says by the convention `A.Ni.Tj`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conventional {
    /// A: the application.
    pub app: AppName,
    /// i: the node, or rank.
    pub rank: u32,
    /// j: the time step.
    pub step: u64,
}

/// Reads a file's name by the convention `A.Ni.Tj`.
pub fn by_convention(name: &str) -> Result<Conventional> {
    let parse = || {
        let (rest, step) = name.rsplit_once(".T")?;
        let (app, rank) = rest.rsplit_once(".N")?;
        let rank = u32::try_from(number(rank)?).ok()?;
        Some(Conventional { app: AppName::new(app).ok()?, rank, step: number(step)? })
    };
    parse().ok_or_else(|| {
        Error::invalid(format!(
            "{name:?} is not named A.Ni.Tj (application, N and rank, T and step), as in melt.N3.T1000"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specs_are_read() {
        let spec = |text: &str| Spec::parse(text).map(|s| (s.app.to_string(), s.step, s.generation)).ok();
        assert_eq!(spec("melt"), Some(("melt".into(), None, None)));
        assert_eq!(spec("melt@10"), Some(("melt".into(), Some(10), None)));
        assert_eq!(spec("melt@10.2"), Some(("melt".into(), Some(10), Some(2))));
        assert_eq!(spec("a.b@0"), Some(("a.b".into(), Some(0), None)));
        for bad in
            ["", "@1", "melt@", "melt@x", "melt@1.", "melt@1.x", "melt@-1", "melt@1.99999999999", "a/b@1"]
        {
            assert_eq!(spec(bad), None, "{bad:?}");
        }
        let (spec, member) = Spec::parse_member("melt@1:a:b/c").unwrap();
        assert_eq!((spec.step, member.as_str()), (Some(1), "a:b/c"));
        assert!(Spec::parse_member("melt@1").is_err());
    }

    #[test]
    fn the_convention_is_read() {
        let read = by_convention("my.app.N12.T3000").unwrap();
        assert_eq!((read.app.as_str(), read.rank, read.step), ("my.app", 12, 3000));
        for bad in
            ["melt", "melt.N1", "melt.T1", "melt.N.T1", "melt.N1.T", "melt.T1.N1", ".N1.T1", "melt.Nx.T1"]
        {
            assert!(by_convention(bad).is_err(), "{bad:?}");
        }
    }
}
