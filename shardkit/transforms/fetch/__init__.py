"""`--fetch`: rows get what the web address in one of their columns gives, before any other step.

`limits` bounds requests, `request` makes one, `client` goes on to what may be fetched and asks again, `robots` knows
what a host disallows, `rows` gives rows their contents in order.
"""
