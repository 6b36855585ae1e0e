"""Data sets that can be replayed: synthetic ones, svmlight files, and the one that ships here."""
