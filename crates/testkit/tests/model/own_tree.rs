//! The own directory of a thread, which no other thread uses. Each call must have the same result
//! as on the local file system.

use crate::operation::{Operation, User};
use crate::trial::{check_result, check_tree, close_both, make_trees, read};
use crate::view::{View, acting_as};
use skep_testkit::files;
use std::path::PathBuf;

/// A tree through the mount of its thread, and the reference tree on the local file system.
#[derive(Debug)]
pub(crate) struct OwnTree {
    reference: View,
    view: View,
    /// The mount of the thread.
    mount: usize,
    /// The directory above the reference tree.
    reference_place: PathBuf,
    /// The directory above the tree, on each mount.
    places: [PathBuf; 2],
}

impl OwnTree {
    /// Creates an empty tree. `reference_place` is an empty local directory, and `places` are the
    /// paths of a new directory on both mounts.
    pub(crate) fn new(reference_place: PathBuf, places: [PathBuf; 2], mount: usize) -> Self {
        files::create_dir(&places[mount]);
        make_trees([&reference_place, &places[mount]]);
        Self {
            reference: View::new(reference_place.join("tree")),
            view: View::new(places[mount].join("tree")),
            mount,
            reference_place,
            places,
        }
    }

    /// Makes calls, each as the given user.
    ///
    /// # Errors
    /// Returns the difference between the results of a call, with all calls up to this call.
    pub(crate) fn calls(&mut self, calls: &[(User, Operation)]) -> Result<(), String> {
        for (index, (user, operation)) in calls.iter().enumerate() {
            self.call(*user, operation).map_err(|what| {
                let place = self.places[self.mount].display();
                format!("{place}: {what}, after the calls {:#?}", &calls[..=index])
            })?;
        }
        Ok(())
    }

    fn call(&mut self, user: User, operation: &Operation) -> Result<(), String> {
        if let Operation::Open(slot, ..) = operation {
            close_both(&mut self.reference, &mut self.view, *slot)?;
        }
        let expected = acting_as(user, || operation.run(&mut self.reference));
        let found = acting_as(user, || operation.run(&mut self.view));
        check_result(self.mount, found, expected)
    }

    /// Compares the tree on both mounts with the reference tree. No call may run in the tree.
    ///
    /// # Errors
    /// Returns the differences, or the error of a call.
    pub(crate) fn compare(&self) -> Result<(), String> {
        let expected = read(&self.reference_place)?;
        for (mount, place) in self.places.iter().enumerate() {
            check_tree(mount, place, &expected)?;
        }
        Ok(())
    }

    /// Closes all files, and removes both trees.
    pub(crate) fn remove(self) {
        drop((self.reference, self.view));
        files::remove_dir_all(self.reference_place);
        files::remove_dir_all(&self.places[self.mount]);
    }
}
