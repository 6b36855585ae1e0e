"""Learners that store a covariance or its diagonal: SOBA, Newtron and Confidit."""
