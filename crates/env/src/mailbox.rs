//! A bounded queue into a thread's event loop. Threads pass values to each other only through such
//! queues.

use crate::buffer::Buf;
use crate::event::Event;
use crate::event_loop::submit;
use crate::file::check;
use io_uring::opcode;
use io_uring::types::Fd;
use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, PoisonError};

struct Queue<T> {
    /// The mutex protects only the queue. A thread holds the mutex for a push or a pop, and never
    /// while the thread waits.
    items: Mutex<VecDeque<T>>,
    limit: usize,
    event: Arc<Event>,
}

/// The sending side. Senders may be cloned and sent to other threads.
pub struct MailboxSender<T>(Arc<Queue<T>>);

/// The receiving side, which stays on one thread.
pub struct Mailbox<T>(Arc<Queue<T>>);

impl<T> Clone for MailboxSender<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> std::fmt::Debug for MailboxSender<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MailboxSender")
    }
}

impl<T> std::fmt::Debug for Mailbox<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Mailbox")
    }
}

impl<T> Mailbox<T> {
    /// Creates a queue of at most `limit` items.
    ///
    /// # Errors
    /// Returns an error if the process is out of file descriptors.
    pub fn new(limit: usize) -> io::Result<(MailboxSender<T>, Self)> {
        let event = Arc::new(Event::new()?);
        let queue = Arc::new(Queue { items: Mutex::new(VecDeque::new()), limit, event });
        Ok((MailboxSender(Arc::clone(&queue)), Self(queue)))
    }

    /// Removes and returns the next item, without waiting. `None` means that the queue is empty.
    pub fn try_receive(&self) -> Option<T> {
        self.0.items.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    /// Waits for the next item. Cancel-safe: an item leaves the queue only when this function
    /// returns it.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses to read the event. No reason for such a refusal is
    /// known.
    pub async fn receive(&self) -> io::Result<T> {
        loop {
            if let Some(item) = self.try_receive() {
                return Ok(item);
            }
            raised(&self.0.event).await?;
        }
    }
}

/// Waits until the counter of an event is not zero, and sets it to zero. The event must come from
/// [`Event::new`], and only one future may call this function at a time. The function needs no
/// further file descriptor.
///
/// # Errors
/// Returns an error if the kernel refuses to read the event.
async fn raised(event: &Arc<Event>) -> io::Result<()> {
    let count = Buf::new(8);
    let entry = opcode::Read::new(Fd(event.fd().as_raw_fd()), count.as_ptr(), 8);
    let kept = Box::new((count.begin_fill(), Arc::clone(event)));
    // SAFETY: the operation keeps buffer and descriptor until the completion.
    let op = unsafe { submit(entry.build().into(), kept) };
    check(op.await.0).map(|_| ())
}

impl<T> MailboxSender<T> {
    /// Adds an item, or returns the item as an error if the queue is full.
    ///
    /// # Errors
    /// Returns the item if the queue holds `limit` items already.
    pub fn send(&self, item: T) -> Result<(), T> {
        {
            let mut items = self.0.items.lock().unwrap_or_else(PoisonError::into_inner);
            if items.len() >= self.0.limit {
                return Err(item);
            }
            items.push_back(item);
        }
        self.0.event.raise();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::{Context, Poll};

    #[test]
    fn mailbox_delivers_items_of_another_thread_in_order() {
        let (sender, mailbox) = Mailbox::new(1000).unwrap();
        let thread = std::thread::spawn(move || (0..1000).for_each(|i| sender.send(i).unwrap()));
        let got = crate::block_on(async move {
            let mut got = Vec::new();
            while got.len() < 1000 {
                got.push(mailbox.receive().await.unwrap());
            }
            got
        });
        thread.join().unwrap();
        assert_eq!(got.unwrap(), (0..1000).collect::<Vec<_>>());
    }

    /// Before the fix, each wait needed a file descriptor, and a target ended if its process had no
    /// free descriptor.
    #[test]
    fn wait_for_an_item_uses_no_file_descriptor() {
        let count = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let takes_none = || {
            let (_sender, mailbox) = Mailbox::<u8>::new(1).unwrap();
            let counts = crate::block_on(async move {
                let before = count();
                let mut wait = std::pin::pin!(mailbox.receive());
                let poll = |context: &mut Context<'_>| Poll::Ready(wait.as_mut().poll(context));
                assert!(std::future::poll_fn(poll).await.is_pending());
                (before, count())
            });
            counts.is_ok_and(|(before, after)| before == after)
        };
        // Other tests of this process may open files at the same time, but not during every attempt
        // of this test.
        assert!((0..20).any(|_| takes_none()));
    }

    #[test]
    fn full_queue_returns_the_item_to_the_sender() {
        let (sender, mailbox) = Mailbox::new(1).unwrap();
        sender.send(1).unwrap();
        assert_eq!(sender.send(2), Err(2));
        assert_eq!(mailbox.try_receive(), Some(1));
    }
}
