use stdchk_catalog::{Class, Medium, Member, Op, PoolOp, Record, State};
use stdchk_object::SessionId;

use super::super::serve::{Incoming, Refusal, Reply, Server, Service};
use super::*;
use crate::shelf::LentMemory;
use crate::wire::{Offered, Protection, Question};

const LEN: u64 = 1000;

/// Has a copy of everything.
struct Copies;

impl Service for Copies {
    fn answer(&self, question: Question, _: &mut Incoming) -> std::result::Result<Reply, Refusal> {
        Ok(Reply::of(|w| match question {
            Question::Offer { .. } => Offered::There.encode(w),
            Question::Who => w.u64(2),
            other => panic!("{other:?} is not asked"),
        }))
    }
}

fn member(id: u64, address: &str) -> PoolOp {
    let (address, domain) = (address.to_owned(), format!("host={id}"));
    PoolOp::Join(Member { id, address, domain, medium: Medium::Memory, capacity: 1 << 20 })
}

/// A pool of which so much has happened.
fn pool(ops: Vec<PoolOp>) -> Pool {
    let mut state = State::default();
    for (number, op) in (1..).zip(ops) {
        state.apply(&Record { number, nonce: [0; 16], time_ns: 0, ops: vec![Op::Pool(op)] }).unwrap();
    }
    state.pool().clone()
}

/// A round that fails while a newer one begins, and ends, has nothing more to say.
#[test]
fn only_the_newest_round_counts() {
    let key = Key::random(Protection::Plain).unwrap();
    let (listener, there) = Server::bind("127.0.0.1:0").unwrap();
    let _server = Server::serve(listener, key.clone(), Arc::new(Copies)).unwrap();
    let found = PoolOp::Found(Class { replicas: 2, ..Class::default() }, 7);
    let mut ops = vec![found, member(1, "127.0.0.1:1"), member(2, "127.0.0.1:1")];
    let shelf = Arc::new(LentMemory::new(1 << 20));
    let item = Item::from(PackName { session: SessionId(1), writer: 1, number: 1 });
    shelf.take(item, LEN, false, &mut &[7; LEN as usize][..]).unwrap();
    let keeper = Keeper::of_shelf(1, shelf, key, None, &pool(ops.clone()));
    let view = keeper.view();
    let old = keeper.locked().round.unwrap();
    // Nobody is there to take a copy; and then there is.
    ops.push(member(2, &there.to_string()));
    keeper.take_epoch(&pool(ops));
    let begun = Instant::now();
    while keeper.report().settled < 3 {
        assert!(begun.elapsed() < Duration::from_secs(30), "it does not settle");
        keeper.step();
    }
    assert_eq!(keeper.report().behind, 0);
    let mut failed = old;
    (failed.after, failed.is_whole) = (Some(item), false);
    keeper.walk(failed, &view);
    assert_eq!(keeper.report().behind, 0);
    assert!(keeper.locked().round.is_none());
}
