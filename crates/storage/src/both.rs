//! Two futures at the same time. Does not own tasks: both futures run in the task of the caller.

use std::pin::pin;
use std::task::Poll;

/// Runs two futures at the same time, and returns their values. Cancel-safe if both are.
pub(crate) async fn both<A, B>(
    first: impl Future<Output = A>,
    second: impl Future<Output = B>,
) -> (A, B) {
    let (mut first, mut second) = (pin!(first), pin!(second));
    let (mut a, mut b) = (None, None);
    std::future::poll_fn(|context| {
        if a.is_none()
            && let Poll::Ready(value) = first.as_mut().poll(context)
        {
            a = Some(value);
        }
        if b.is_none()
            && let Poll::Ready(value) = second.as_mut().poll(context)
        {
            b = Some(value);
        }
        match (a.take(), b.take()) {
            (Some(a), Some(b)) => Poll::Ready((a, b)),
            values => {
                (a, b) = values;
                Poll::Pending
            }
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_env::local::Notify;

    #[test]
    fn both_futures_run_until_the_slower_one_ends() {
        let values = skep_env::block_on(async {
            let (first, second) = (Notify::default(), Notify::default());
            let wait = async {
                first.wait().await;
                second.notify();
                1
            };
            let answer = async {
                first.notify();
                second.wait().await;
                2
            };
            both(wait, answer).await
        });
        assert_eq!(values.unwrap(), (1, 2));
    }
}
