//! Attempts at several addresses. The next attempt may begin before the previous attempt has
//! failed, and the first success ends all other attempts.
//!
//! This module is not responsible for the attempts themselves: callers connect to a host at one of
//! its addresses ([`crate::client`]), or to one of several management processes
//! ([`crate::membership`]).

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

/// Runs one attempt for each item, in order. The next attempt starts when an earlier attempt fails,
/// or after `stagger`. Returns the result of the first attempt that succeeds. If all attempts fail,
/// returns the error of the attempt that failed last. `None` means that there are no items.
/// Cancel-safe if each attempt is cancel-safe.
pub(crate) async fn first_success<I, T, E, F>(
    items: impl IntoIterator<Item = I>,
    stagger: Duration,
    attempt: impl Fn(I) -> F,
) -> Option<Result<T, E>>
where
    F: Future<Output = Result<T, E>>,
{
    let mut waiting: VecDeque<I> = items.into_iter().collect();
    let mut running: Vec<Pin<Box<F>>> = Vec::new();
    let mut failure = None;
    loop {
        match waiting.pop_front() {
            Some(item) => running.push(Box::pin(attempt(item))),
            None if running.is_empty() => return failure.map(Err),
            None => {}
        }
        let next = next_result(&mut running);
        let result = match waiting.is_empty() {
            true => Some(next.await),
            false => skep_env::timeout(stagger, next).await,
        };
        match result {
            Some(Ok(success)) => return Some(Ok(success)),
            Some(Err(error)) => failure = Some(error),
            None => {}
        }
    }
}

/// Waits for the result of any of the futures, and removes that future. `running` must not be
/// empty.
async fn next_result<T, F: Future<Output = T>>(running: &mut Vec<Pin<Box<F>>>) -> T {
    std::future::poll_fn(|context| {
        for index in 0..running.len() {
            if let Poll::Ready(result) = running[index].as_mut().poll(context) {
                drop(running.swap_remove(index));
                return Poll::Ready(result);
            }
        }
        Poll::Pending
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::rc::Rc;

    const STAGGER: Duration = Duration::from_millis(20);

    /// Runs attempts. Each attempt takes a time in milliseconds, and then succeeds or fails.
    /// Returns the result and the attempts that began.
    fn run(attempts: &'static [(u64, bool)]) -> (Option<Result<usize, usize>>, Vec<usize>) {
        let begun = Rc::new(RefCell::new(Vec::new()));
        let log = Rc::clone(&begun);
        let attempt = move |index: usize| {
            log.borrow_mut().push(index);
            let (ms, succeeds) = attempts[index];
            async move {
                skep_env::sleep(Duration::from_millis(ms)).await;
                if succeeds { Ok(index) } else { Err(index) }
            }
        };
        let result = skep_env::block_on(async move {
            let all = first_success(0..attempts.len(), STAGGER, attempt);
            skep_env::timeout(Duration::from_secs(20), all).await.expect("the attempts end")
        });
        (result.unwrap(), begun.take())
    }

    const HANGS: (u64, bool) = (3_600_000, true);

    #[test]
    fn next_address_is_tried_while_an_earlier_address_is_silent() {
        assert_eq!(run(&[HANGS, HANGS, (1, true)]), (Some(Ok(2)), vec![0, 1, 2]));
    }

    #[test]
    fn later_addresses_are_not_tried_if_the_first_address_replies() {
        assert_eq!(run(&[(0, true), HANGS]), (Some(Ok(0)), vec![0]));
    }

    #[test]
    fn next_address_is_tried_immediately_after_a_failure() {
        assert_eq!(run(&[(0, false), (0, false), (0, true)]), (Some(Ok(2)), vec![0, 1, 2]));
    }

    #[test]
    fn connection_goes_to_the_address_that_replies_first() {
        assert_eq!(run(&[(60, true), HANGS]), (Some(Ok(0)), vec![0, 1]));
    }

    #[test]
    fn failure_of_all_addresses_returns_the_last_error() {
        assert_eq!(run(&[(0, false), (50, false)]), (Some(Err(1)), vec![0, 1]));
        assert_eq!(run(&[]), (None, vec![]));
    }
}
