"""A model of the commit: actors as steps over a store, explored in every order."""
