"""What the tests know of each lesson, in a module of its name.

What it teaches, a fault in the package that must turn it red, and answers to its exercises: wrong ones, each with the
mistake that must be named, and right ones that are written in another way.
"""
