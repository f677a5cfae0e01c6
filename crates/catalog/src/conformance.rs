//! The suite that every catalog passes. Each function takes an empty catalog and panics where the contract is broken.

use stdchk_object::{AppName, CheckpointId, Hash, Kind, Locator, PackName, PackRef, SessionId};

use crate::op::{CheckpointEntry, Durability, Op, Owner, PartEntry, SessionEntry, SessionKind, TallyEntry};
use crate::tree::{Body, Named, Node, ROOT, Version};
use crate::{Catalog, Policy};

fn app() -> AppName {
    AppName::new("melt").expect("a name")
}

/// A pack name for tests.
pub fn pack(session: u64, number: u32) -> PackName {
    PackName { session: SessionId(session), writer: 0, number }
}

/// A session, for tests.
pub fn open(id: u64, kind: SessionKind) -> Op {
    Op::Open(SessionEntry { id: SessionId(id), kind, owner: Owner::default(), lease_ms: 1000, since_ns: 0 })
}

/// A session that saves `melt` at a step, for tests.
pub fn writer(id: u64, step: u64) -> Op {
    open(id, SessionKind::Writer { app: app(), step, parts: None })
}

/// A name in the root that leads to a file of these versions, for tests.
pub fn file(number: u64, versions: Vec<Version>) -> Op {
    let node = Node {
        number,
        body: Body::File(versions),
        mode: 0o644,
        user: 0,
        group: 0,
        modified_ns: 0,
        changed_ns: 0,
        accessed_ns: 0,
        notes: Vec::new(),
    };
    Op::Name(Box::new(Named { parent: ROOT, name: "f".to_owned(), node }))
}

/// A part of nothing but its head, for tests.
pub fn part(session: u64, number: u32) -> PartEntry {
    let head =
        Locator { pack: PackRef { name: pack(session, number), root: Hash([0; 32]), length: 1 }, chunk: 0 };
    PartEntry { head, rank: 0, durability: Durability::Local, boot: [1; 16], begun_ns: 0, took_ms: 0 }
}

/// A commit of that session, for tests.
pub fn commit(id: u64, step: u64, revived: &[PackName]) -> Op {
    let manifest = Locator { pack: PackRef { name: pack(id, 0), root: Hash([7; 32]), length: 9 }, chunk: 3 };
    let checkpoint = CheckpointEntry {
        app: app(),
        step,
        generation: 0,
        sequence: 0,
        manifest,
        created_ns: 5,
        durability: Durability::Local,
        boot: [1; 16],
        member_count: 1,
        bytes: 10,
        tally: TallyEntry::default(),
        written: 11,
        took_ms: 4,
    };
    Op::Commit(SessionId(id), Box::new(checkpoint), revived.to_vec())
}

fn append(catalog: &dyn Catalog, op: Op) -> stdchk_object::Result<()> {
    catalog.append(true, &mut |_| Ok(vec![op.clone()])).map(drop)
}

/// Checks a [`Catalog`] that is empty and stays with this caller alone.
pub fn catalog(catalog: &dyn Catalog) {
    assert_eq!(catalog.state().expect("state").number(), 0);
    append(catalog, writer(1, 100)).expect("open");
    assert_eq!(append(catalog, writer(1, 100)).expect_err("open twice").kind(), Kind::Conflict);
    append(catalog, commit(1, 100, &[])).expect("commit");
    assert_eq!(append(catalog, commit(1, 100, &[])).expect_err("commit twice").kind(), Kind::Fenced);

    append(catalog, writer(2, 100)).expect("open");
    append(catalog, commit(2, 100, &[])).expect("the same step again");
    let state = catalog.state().expect("state");
    let id = CheckpointId { app: app(), step: 100, generation: 2 };
    assert_eq!(state.checkpoint(&id).expect("second generation").sequence, 2);

    append(catalog, writer(3, 7)).expect("open");
    append(catalog, Op::Fence(SessionId(3))).expect("fence");
    assert_eq!(append(catalog, commit(3, 7, &[])).expect_err("fenced").kind(), Kind::Fenced);

    condemnation(catalog);
    let policy = Policy { keep_last: Some(3), ..Policy::default() };
    append(catalog, Op::SetPolicy(app(), policy.clone())).expect("policy");
    append(catalog, Op::Drop(vec![id.clone(), id.clone()])).expect("drop");
    let state = catalog.state().expect("state");
    assert!(state.checkpoint(&id).is_none());
    assert_eq!(state.apps()[&app()].policy, policy);
    let before = state.number();
    catalog.append(true, &mut |_| Ok(vec![])).expect("nothing");
    assert_eq!(catalog.state().expect("state").number(), before, "no operations, no record");

    catalog.beat(SessionId(9)).expect("beat");
    assert!(catalog.beat_ages().expect("ages").contains_key(&SessionId(9)));
    catalog.forget_beats(&[SessionId(9), SessionId(10)]).expect("forget");
    assert!(catalog.beat_ages().expect("ages").is_empty());
}

/// Older sessions may revive what is condemned, younger ones may not, and sweeping waits for the older.
fn condemnation(catalog: &dyn Catalog) {
    let lost = pack(77, 0);
    append(catalog, writer(4, 8)).expect("an older session");
    append(catalog, Op::Condemn(vec![lost])).expect("condemn");
    append(catalog, writer(5, 9)).expect("a younger session");
    assert_eq!(append(catalog, Op::Swept(vec![lost])).expect_err("too early").kind(), Kind::Conflict);
    assert_eq!(append(catalog, commit(5, 9, &[lost])).expect_err("too young").kind(), Kind::Conflict);
    append(catalog, commit(4, 8, &[lost])).expect("revive");
    assert!(catalog.state().expect("state").condemned().is_empty(), "the commit took it back");
    append(catalog, Op::Condemn(vec![lost])).expect("condemn again");
    append(catalog, Op::End(SessionId(5))).expect("end");
    assert_eq!(catalog.state().expect("state").sweepable(), [lost]);
    append(catalog, Op::Swept(vec![lost])).expect("swept");
    append(catalog, writer(6, 9)).expect("open");
    assert_eq!(append(catalog, Op::Condemn(vec![pack(6, 0)])).expect_err("its own").kind(), Kind::Conflict);
    append(catalog, Op::End(SessionId(6))).expect("end");
}

/// Many writers on as many handles of one empty catalog: every commit is there once, in one order.
pub fn at_once(handles: &[&dyn Catalog], commits_each: u64) {
    std::thread::scope(|scope| {
        for (i, catalog) in handles.iter().enumerate() {
            scope.spawn(move || {
                for j in 0..commits_each {
                    let id = (i as u64) << 32 | j;
                    append(*catalog, writer(id, j)).expect("open");
                    append(*catalog, commit(id, j, &[])).expect("commit");
                }
            });
        }
    });
    let states: Vec<_> = handles.iter().map(|catalog| catalog.state().expect("state")).collect();
    let total = handles.len() as u64 * commits_each;
    for state in &states {
        assert_eq!(state.commits(), total);
        assert_eq!(state.number(), total * 2);
        assert_eq!(state.checkpoints().count() as u64, total);
        assert!(state.sessions().is_empty());
        assert_eq!(**state, *states[0], "all see the same");
    }
}
