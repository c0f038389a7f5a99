//! A list that grows at its end, keeps a limited number of items, and knows what changed since it was last asked.

use std::collections::VecDeque;

/// Which items stay when there are too many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// The first ones, for a run that has ended: all runs of a page have the same beginning.
    Oldest,
    /// The last ones, for a run that goes on.
    Newest,
}

/// Items with numbers that never change: the first one ever has number 0.
#[derive(Debug, Clone)]
pub struct ItemLog<T> {
    items: VecDeque<T>,
    /// The number of the first item that is still here.
    first: u64,
    /// The number of the first item that changed or was added since [`ItemLog::settle`].
    changed: u64,
    limit: usize,
    kept: Kept,
}

impl<T> ItemLog<T> {
    /// A list of at most `limit` items.
    pub fn new(limit: usize, kept: Kept) -> Self {
        ItemLog { items: VecDeque::new(), first: 0, changed: 0, limit: limit.max(1), kept }
    }

    /// Adds an item.
    pub fn push(&mut self, item: T) {
        if self.items.len() == self.limit {
            match self.kept {
                Kept::Oldest => return,
                Kept::Newest => {
                    self.items.pop_front();
                    self.first += 1;
                    self.changed = self.changed.max(self.first);
                }
            }
        }
        self.items.push_back(item);
    }

    /// The number of the first item.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// The number that the next item gets.
    pub fn next(&self) -> u64 {
        self.first + self.items.len() as u64
    }

    /// The item with this number, to change it; `None` if it is not here.
    pub fn change(&mut self, number: u64) -> Option<&mut T> {
        let index = usize::try_from(number.checked_sub(self.first)?).ok()?;
        let item = self.items.get_mut(index)?;
        self.changed = self.changed.min(number);
        Some(item)
    }

    /// The items, from this number on.
    pub fn since(&self, number: u64) -> impl Iterator<Item = &T> {
        self.items.iter().skip(number.saturating_sub(self.first) as usize)
    }

    /// All items.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.items.iter()
    }

    /// The number of the first item that changed.
    pub fn changed(&self) -> u64 {
        self.changed
    }

    /// All changes so far are known.
    pub fn settle(&mut self) {
        self.changed = self.next();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_and_changes_are_known() {
        let mut log = ItemLog::new(3, Kept::Newest);
        "abcde".chars().for_each(|letter| log.push(letter));
        assert_eq!((log.first(), log.next(), log.changed()), (2, 5, 2));
        assert_eq!(log.iter().collect::<String>(), "cde");
        log.settle();
        assert_eq!(log.changed(), 5);
        *log.change(3).unwrap() = 'D';
        assert!(log.change(1).is_none() && log.change(5).is_none());
        assert_eq!((log.changed(), log.since(log.changed()).collect::<String>()), (3, "De".into()));
    }

    #[test]
    fn the_oldest_stay_if_asked_for() {
        let mut log = ItemLog::new(3, Kept::Oldest);
        "abcde".chars().for_each(|letter| log.push(letter));
        assert_eq!((log.iter().collect::<String>(), log.next()), ("abc".into(), 3));
    }
}
