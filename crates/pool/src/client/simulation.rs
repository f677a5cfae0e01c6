//! A network that is not there: in a simulation, one thread is all processes, and whoever simulates them says what becomes of a question.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use stdchk_object::Result;

use crate::server::Service;

/// A simulated network.
pub trait Network {
    /// A question is sent to an address, to a certain member if that is a benefactor: who answers it, unless it gets lost.
    fn begin(&self, to: &str, member: Option<u64>) -> Result<Arc<dyn Service>>;

    /// It was answered. The answer may get lost, too.
    fn end(&self) -> Result<()>;
}

thread_local! {
    static NETWORK: RefCell<Option<Rc<dyn Network>>> = const { RefCell::new(None) };
}

/// Has all questions that this thread asks go over a simulated network, until it is dropped.
pub struct Simulated(());

impl Simulated {
    /// From now on.
    pub fn begin(network: Rc<dyn Network>) -> Simulated {
        NETWORK.set(Some(network));
        Simulated(())
    }
}

impl Drop for Simulated {
    fn drop(&mut self) {
        NETWORK.set(None);
    }
}

/// The network of this thread, where it is a simulation.
pub(super) fn network() -> Option<Rc<dyn Network>> {
    NETWORK.with_borrow(Clone::clone)
}
