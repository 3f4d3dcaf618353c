//! Property tests of the queue against the list of its entries.

use super::*;
use proptest::prelude::*;
use std::collections::HashMap;

const QUANTUM: u64 = 10;
/// The highest cost of an entry. Such an entry needs three visits.
const HIGHEST: u64 = 30;

fn client(number: u32) -> NodeId {
    NodeId::new(number)
}

/// A change of the queue.
#[derive(Debug, Clone)]
enum Step {
    Push {
        client: u32,
        cost: u64,
    },
    /// Takes an entry of any client except `except`. The clients have the ids 0 to 3.
    Take {
        except: u32,
    },
    /// Removes the entry at this position of a client's list, if there is such an entry.
    Remove {
        client: u32,
        at: usize,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let push = (0..4_u32, 0..=HIGHEST).prop_map(|(client, cost)| Step::Push { client, cost });
    // No client has the id 4, so a step with this id takes an entry of any client.
    let take =
        prop_oneof![3 => Just(4_u32), 1 => 0..4_u32].prop_map(|except| Step::Take { except });
    let remove = (0..4_u32, 0..3_usize).prop_map(|(client, at)| Step::Remove { client, at });
    prop::collection::vec(prop_oneof![4 => push, 4 => take, 1 => remove], 0..200)
}

proptest! {
    /// Each entry leaves the queue once. The entries of a client leave the queue in the order in
    /// which they were added. `take` returns `None` only if no client except `except` has an entry.
    #[test]
    fn entries_of_a_client_leave_the_queue_once_and_in_order(steps in steps()) {
        let mut queue = FairQueue::new(QUANTUM);
        let mut model: HashMap<u32, VecDeque<usize>> = HashMap::new();
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Push { client: of, cost } => {
                    queue.push(client(of), cost, number);
                    model.entry(of).or_default().push_back(number);
                }
                Step::Take { except } => {
                    let taken = queue.take(|it| it != client(except));
                    let left: usize =
                        model.iter().filter(|(of, _)| **of != except).map(|(_, it)| it.len()).sum();
                    prop_assert_eq!(taken.is_some(), left > 0);
                    if let Some((of, entry)) = taken {
                        prop_assert_ne!(of.raw(), except);
                        let first = model.get_mut(&of.raw()).and_then(VecDeque::pop_front);
                        prop_assert_eq!(first, Some(entry));
                    }
                }
                Step::Remove { client: of, at } => {
                    let gone = model.get_mut(&of).and_then(|left| left.remove(at));
                    queue.remove(client(of), |entry| Some(*entry) == gone);
                }
            }
            queue.check_invariants();
            prop_assert_eq!(queue.count(), model.values().map(VecDeque::len).sum::<usize>());
        }
    }

    /// A busy client delays the small entry of another client by at most one visit. In this visit,
    /// the busy client uses one quantum and the deficit for its first entry.
    #[test]
    fn small_entry_waits_at_most_one_turn_of_each_other_client(
        costs in prop::collection::vec(1..=HIGHEST, 100),
        others in 1..4_u32,
        taken_before in 0..30_usize,
        cost in 1..=QUANTUM,
    ) {
        let mut queue = FairQueue::new(QUANTUM);
        for other in 0..others {
            for other_cost in &costs {
                queue.push(client(other), *other_cost, *other_cost);
            }
        }
        for _ in 0..taken_before {
            queue.take(|_| true);
        }
        let single = client(9);
        queue.push(single, cost, 0);
        let mut before: HashMap<NodeId, u64> = HashMap::new();
        loop {
            let (of, used) = queue.take(|_| true).expect("the queue has entries");
            if of == single {
                break;
            }
            *before.entry(of).or_default() += used;
        }
        prop_assert!(before.values().all(|used| *used < HIGHEST + QUANTUM), "{:?}", before);
    }

    /// Clients with different costs get equal shares of the cost, not of the number of entries.
    #[test]
    fn busy_clients_get_equal_shares_of_cost(costs in prop::collection::vec(1..=HIGHEST, 2..5)) {
        let mut queue = FairQueue::new(QUANTUM);
        let clients = 0..u32::try_from(costs.len()).unwrap();
        for (of, cost) in clients.zip(&costs) {
            for _ in 0..1000 {
                queue.push(client(of), *cost, *cost);
            }
        }
        let mut used: HashMap<NodeId, u64> = HashMap::new();
        for _ in 0..500 {
            let (of, cost) = queue.take(|_| true).expect("no client runs out of entries");
            *used.entry(of).or_default() += cost;
        }
        let (least, most) = (used.values().min().unwrap(), used.values().max().unwrap());
        prop_assert_eq!(used.len(), costs.len());
        // The numbers of visits of two clients differ by at most one. Also, each client may have an
        // unused deficit. So the costs may differ by this amount.
        prop_assert!(most - least <= HIGHEST + 2 * QUANTUM, "{:?}", used);
    }
}
